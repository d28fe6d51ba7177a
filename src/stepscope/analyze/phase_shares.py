"""Which share of a step does each phase take, on the host and on an asynchronous device?

Shares, means and medians cover the steps of full detail outside the dropped epochs. Totals cover
the whole run; steps without phases enter them by extrapolation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.records.types import DeviceTime, PhaseTime, Summary
from stepscope.stats.intervals import quantile

DROP_EPOCHS = 1  # the default of `--drop-epochs`, also used for traces


def dropped_epochs_of(run: Run) -> list[int]:
    """Return the first epochs, which are excluded; an empty list if there are no others."""
    first = run.spec.get("drop_epochs", DROP_EPOCHS)
    seen = sorted(set(run.steps["epoch"]))
    return seen[:first] if len(seen) > first else []


def dropped_note(figures: Summary) -> str:
    """Return a note on the epochs that are excluded from means, or an empty string."""
    dropped = figures.get("dropped_epochs") or []
    return f"without epoch {', '.join(map(str, dropped))}" if dropped else ""


def counted_steps(steps: Table, dropped: Sequence[int]) -> list[bool]:
    """Return a mask of the steps of full detail outside the dropped epochs."""
    return [
        detail == schema.FULL and epoch not in dropped
        for detail, epoch in zip(steps["detail"], steps["epoch"], strict=True)
    ]


def phase_shares(steps: Table, dropped: Sequence[int]) -> dict[str, PhaseTime] | None:
    """Return share and mean of each phase, without sorting; None without a counted step."""
    counted = counted_steps(steps, dropped)
    whole_s = sum(compress(steps["step_s"], counted))
    if not whole_s:
        return None
    totals_s = {phase: sum(compress(steps[f"{phase}_s"], counted)) for phase in schema.PHASES}
    return {
        phase: {"share": total_s / whole_s, "mean_s": total_s / sum(counted)}
        for phase, total_s in totals_s.items()
    }


def time_by_phase(steps: Table, dropped: Sequence[int]) -> dict[str, PhaseTime] | None:
    """Return total, share, mean, median and tails of each phase; None without a counted step."""
    full = [detail == schema.FULL for detail in steps["detail"]]
    counted = counted_steps(steps, dropped)
    whole_s = sum(compress(steps["step_s"], counted))
    if not whole_s:
        return None
    extrapolation = sum(steps["step_s"]) / sum(compress(steps["step_s"], full))
    found: dict[str, PhaseTime] = {}
    for phase in schema.PHASES:
        phase_s = steps[f"{phase}_s"]
        total_s = sum(compress(phase_s, full)) * extrapolation
        found[phase] = {"total_s": total_s, **distribution(compress(phase_s, counted), whole_s)}
    return found


def distribution(times_s: Iterable[float], whole_s: float) -> PhaseTime:
    """Return the share of some times of the whole, their mean, median and tails."""
    ordered_s = sorted(times_s)
    total_s = sum(ordered_s)
    return {
        "share": total_s / whole_s if whole_s else 0.0,
        "mean_s": total_s / len(ordered_s),
        "median_s": quantile(ordered_s, 0.5),
        "p95_s": quantile(ordered_s, 0.95),
        "p99_s": quantile(ordered_s, 0.99),
    }


# --- An asynchronous device


_ON_DEVICE = ("transfer", "forward", "backward", "optimizer")
# The host runs ahead of a busy device and finishes issuing long before it. Where issuing takes
# about as long as the work itself, the device has nothing queued and waits for the host.
_HOST_BOUND_FROM = 0.9
_WAITING_FROM = 0.1


def device_time(steps: Table, dropped: Sequence[int]) -> DeviceTime | None:
    """Return the device's time by phase, and what it waits for; None without such a device."""
    counted = [
        is_counted and forward_s is not None
        for is_counted, forward_s in zip(
            counted_steps(steps, dropped), steps["forward_device_s"], strict=True
        )
    ]
    if not any(counted):
        return None
    times_s = {
        phase: list(compress(steps[f"{phase}_device_s"], counted))
        for phase in (*_ON_DEVICE, "idle")
    }
    idle_s, whole_s = sum(times_s["idle"]), sum(map(sum, times_s.values()))
    busy_s = whole_s - idle_s
    issue_s = sum(sum(compress(steps[f"{phase}_s"], counted)) for phase in _ON_DEVICE)
    bound_by = "host" if issue_s >= _HOST_BOUND_FROM * busy_s else "device"
    if idle_s >= _WAITING_FROM * whole_s:
        bound_by = "data"
    return {
        "phases": {
            phase: {"total_s": sum(each_s), **distribution(each_s, whole_s)}
            for phase, each_s in times_s.items()
        },
        "issue_s": issue_s,
        "bound_by": bound_by if busy_s else None,
    }
