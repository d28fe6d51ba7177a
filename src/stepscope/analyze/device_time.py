"""What does an asynchronous device do while the host issues its work, and which waits?"""

from __future__ import annotations

from stepscope.records import schema
from stepscope.records.table import Table
from stepscope.records.types import DeviceTime, PhaseTime
from stepscope.stats import quantile

_PHASES = ("transfer", "forward", "backward", "optimizer")
# The host runs ahead of a busy device and finishes issuing long before it. Where issuing takes
# about as long as the work itself, the device has nothing queued and waits for the host.
_HOST_BOUND_FROM = 0.9
_WAITING_FROM = 0.1


def device_time(steps: Table, dropped: list[int]) -> DeviceTime | None:
    """Return the device's time by phase beside the host's; None without such a device."""
    rows = [
        row
        for row in steps.rows()
        if row["detail"] == schema.FULL
        and row["epoch"] not in dropped
        and row["forward_device_s"] is not None
    ]
    if not rows:
        return None
    idle_s = sum(row["idle_device_s"] for row in rows)
    busy_s = sum(row[f"{phase}_device_s"] for row in rows for phase in _PHASES)
    issue_s = sum(row[f"{phase}_s"] for row in rows for phase in _PHASES)
    phases = {
        name: _distribution([row[f"{name}_device_s"] for row in rows], idle_s + busy_s)
        for name in (*_PHASES, "idle")
    }
    return {"phases": phases, "issue_s": issue_s, "bound_by": _bound_by(idle_s, busy_s, issue_s)}


def _bound_by(idle_s: float, busy_s: float, issue_s: float) -> str | None:
    if not busy_s:
        return None
    if idle_s >= _WAITING_FROM * (idle_s + busy_s):
        return "data"
    return "host" if issue_s >= _HOST_BOUND_FROM * busy_s else "device"


def _distribution(values: list[float], of_s: float) -> PhaseTime:
    ordered = sorted(values)
    total_s = sum(ordered)
    return {
        "total_s": total_s,
        "share": total_s / of_s if of_s else 0.0,
        "mean_s": total_s / len(ordered),
        "median_s": quantile(ordered, 0.5),
        "p95_s": quantile(ordered, 0.95),
    }
