"""What memory a run took: over time, and its bill as a waterfall."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stepscope.analyze.thinning import thin
from stepscope.records.reader import Run
from stepscope.report.charts import Chart, Mark

_MIB = 2**20
_NEAR_THE_LIMIT = 4  # a limit that is further off would flatten the chart


def memory_by_time(runs: Sequence[tuple[str, Run]]) -> Chart:
    """Show the memory of all processes of a run, and the limit where it comes near.

    Proportional sizes where the system gives them; else the resident size of the training.
    """
    marks = [mark for name, run in runs for mark in _memory(name, run)]
    most = max((mark.high or mark.y for mark in marks), default=0.0)
    limits = [_limit_mib(run) for _, run in runs]
    limit = min((each for each in limits if each), default=None)
    near = limit is not None and limit < most * _NEAR_THE_LIMIT
    return Chart(
        "Memory over time",
        "bands",
        "time since the start, s",
        "memory, MiB",
        marks,
        limit=("limit", limit) if near and limit is not None else None,
    )


def _memory(name: str, run: Run) -> Iterator[Mark]:
    telemetry = run.telemetry
    on_device = any(telemetry["device_memory_bytes"])
    for column, what in (("pss_bytes", "host"), ("device_memory_bytes", "device")):
        values = telemetry[column]
        if what == "host" and not any(values):
            values = telemetry["rss_bytes"]
        series = ", ".join(filter(None, (name, what))) if on_device or not name else name
        for each in thin(telemetry["time_s"], values):
            size, low, high = (part / _MIB for part in (each.mean, each.least, each.most))
            yield Mark(each.at, size, series, low=low, high=high)


def _limit_mib(run: Run) -> float | None:
    environment = run.info.get("environment") or {}
    bill = run.summary.get("memory_bill") or {}
    found = bill.get("limit_bytes") or environment.get("memory_limit_bytes")
    return found / _MIB if found else None


def bill_waterfall(bill: dict[str, Any] | None) -> Chart:
    """Show the items of a memory bill, each from where the last one ended, and the peak."""
    return Chart(
        "Memory bill",
        "waterfall",
        "",
        "memory, MiB",
        list(_parts(bill)) if bill else [],
        "measured where it could be, else forecast" if bill else "",
    )


def _parts(bill: dict[str, Any]) -> Iterator[Mark]:
    reached = 0.0
    for name, item in bill["items"].items():
        measured = item.get("measured_bytes")
        size = (item["bytes"] if measured is None else measured) / _MIB
        if size:
            yield Mark(name.replace("_", " "), size, low=reached, high=reached + size)
            reached += size
    if bill.get("unexplained_bytes") is not None:
        size = bill["unexplained_bytes"] / _MIB
        low, high = sorted((reached, reached + size))
        yield Mark("unexplained", size, low=low, high=high)
        reached += size
    whole = "peak" if bill.get("peak_memory_bytes") else "in all"
    yield Mark(whole, reached, low=0.0, high=reached, chosen=True)
