"""Which share of a step does each phase take?

Shares, means and medians cover the steps of full detail outside the dropped epochs. Totals cover
the whole run; steps without phases enter them by extrapolation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.records.types import PhaseTime, Summary
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
