"""What is known of a run by now: its closing figures or, until then, those of its tables."""

from __future__ import annotations

from itertools import compress
from typing import Any

from stepscope.analyze.where_time_goes import DROP_EPOCHS, dropped_epochs, samples_in
from stepscope.records import schema
from stepscope.records.reader import Run

NOT_CLOSED = "the run has not been closed"
_ONLY_WHEN_CLOSED = (
    *("wall_s", "closure", "peak_memory_bytes", "device_peak_memory_bytes", "memory_bill"),
    *("layers", "device"),
)


def figures_so_far(run: Run) -> dict[str, Any]:
    """Return the summary of a run; of one that was not closed, what its steps add up to.

    Medians and tails are then left out: to sort a million steps takes longer than to read them.
    """
    if run.summary:
        return run.summary
    steps = run.steps
    dropped = dropped_epochs(steps, run.spec.get("drop_epochs", DROP_EPOCHS))
    return {
        "steps": len(steps),
        "samples": samples_in(steps),
        "dropped_epochs": dropped,
        "phases": _shares(run, dropped),
        "absent": dict.fromkeys(_ONLY_WHEN_CLOSED, NOT_CLOSED),
    }


def _shares(run: Run, dropped: list[int]) -> dict[str, dict[str, float]] | None:
    """Return share and mean of each phase over the steps of full detail."""
    steps = run.steps
    chosen = [
        detail == schema.FULL and epoch not in dropped
        for detail, epoch in zip(steps["detail"], steps["epoch"], strict=True)
    ]
    count = sum(chosen)
    whole_s = _sum_of(steps["step_s"], chosen)
    if not whole_s:
        return None
    sums = {phase: _sum_of(steps[f"{phase}_s"], chosen) for phase in schema.PHASES}
    return {
        phase: {"share": total_s / whole_s, "mean_s": total_s / count}
        for phase, total_s in sums.items()
    }


def _sum_of(values: Any, chosen: list[bool]) -> float:
    return float(sum(compress(values, chosen)))
