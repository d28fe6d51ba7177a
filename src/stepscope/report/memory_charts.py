"""What memory a run took: over time, and its bill as a waterfall, one for each pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stepscope.analyze.thinning import thin
from stepscope.analyze.where_memory_goes import pools_of
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
    limits = [limit for _, run in runs for limit in _limit_mib(run)]
    limit = min(limits, key=lambda limit: limit[1], default=None)
    near = limit is not None and limit[1] < most * _NEAR_THE_LIMIT
    return Chart(
        "Memory over time",
        "bands",
        "time since the start, s",
        "memory, MiB",
        marks,
        limit=limit if near else None,
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


def _limit_mib(run: Run) -> Iterator[tuple[str, float]]:
    """Name the limit that is filled most, where one is known."""
    environment = run.info.get("environment") or {}
    bill = run.summary.get("memory_bill") or {}
    found = bill.get("limit_bytes") or environment.get("memory_limit_bytes")
    if found:
        of_device = bill.get("limit_pool") == "device"
        yield "limit of the device" if of_device else "limit", found / _MIB


def bill_waterfalls(bill: dict[str, Any] | None) -> list[Chart]:
    """Show the items of a bill, each from where the last one ended, and the peak, pool by pool."""
    if not bill:
        return [_waterfall("Memory bill", {})]
    pools = pools_of(bill["items"])
    if len(pools) == 1:
        return [_waterfall("Memory bill", bill)]
    return [_waterfall(f"Memory bill, {pool}", _part_of(bill, pool)) for pool in pools]


def _part_of(bill: dict[str, Any], pool: str) -> dict[str, Any]:
    items = {name: item for name, item in bill["items"].items() if item["pool"] == pool}
    seen = (bill.get("pools") or {}).get(pool, {})
    return {**seen, "items": items, "peak_memory_bytes": seen.get("peak_bytes")}


def _waterfall(title: str, bill: dict[str, Any]) -> Chart:
    return Chart(
        title,
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
