"""The verdict on a run: which phase takes the largest share of a step, and how reliable that is."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.analyze.phase_shares import dropped_note
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import Summary
from stepscope.units import format_duration, format_share

_ACTIVITIES = {
    "data": "Waiting for data",
    "transfer": "Moving batches to the device",
    "forward": "The forward pass",
    "backward": "The backward pass",
    "optimizer": "The optimiser",
    "other": "Work outside the phases",
}


def verdict_on(run: Run, figures: Summary) -> Iterator[str]:
    """Yield the sentences of the verdict; `figures` is the summary of the run so far."""
    phases = figures.get("phases")
    if phases:
        most, _ = max(phases.items(), key=lambda each: each[1]["share"])
        step_s = sum(phase["mean_s"] for phase in phases.values())
        share, mean_s = format_share(phases[most]["share"]), format_duration(phases[most]["mean_s"])
        yield (
            f"{_ACTIVITIES[most]} takes the largest share of a step: {share}, {mean_s} of "
            f"{format_duration(step_s)} on average."
        )
        if most != "data":
            yield f"Waiting for data takes {format_share(phases['data']['share'])}."
        yield f"{', '.join(_reliability(run, figures))}."
    else:
        why = (figures.get("absent") or {}).get("phases", "no step is recorded")
        yield f"The time by phase is unknown: {why}."
    if run.status != schema.COMPLETED:
        yield _ending(run)
    for name in (schema.STEPS, schema.EPOCHS, schema.TELEMETRY):
        cut = getattr(run, name.removesuffix(".csv")).cut_lines
        if cut:
            yield f"{name}: skipped {cut:,} unreadable line{'s' * (cut > 1)}."


def about_accounted_share(figures: Summary) -> Iterator[str]:
    """Yield how much of the epochs' own clock the steps account for, if it is off by over 1 %."""
    accounted = figures.get("accounted_share")
    if accounted is not None and abs(accounted - 1) > 0.01:
        yield f"steps account for {format_share(accounted)} of the time of their epochs"


def _reliability(run: Run, figures: Summary) -> Iterator[str]:
    yield f"{figures.get('steps', 0):,} steps"
    if dropped := dropped_note(figures):
        yield f"figures {dropped}"
    yield from about_accounted_share(figures)
    if (share := figures.get("unattributed_share")) is not None:
        yield f"{format_share(share)} outside the phases"
    cost = (run.info.get("instrument") or {}).get("overhead_share")
    if cost is not None:
        yield f"profiling overhead {format_share(cost)}"


def _ending(run: Run) -> str:
    if run.status == schema.RUNNING:
        return "The run has not ended: these are the figures so far."
    reason = run.info.get("reason")
    because = f": {str(reason).rstrip('.')}" if reason else ""
    return f"The run ended as {run.status.replace('_', ' ')}{because}."
