"""Findings on the time outside training steps: evaluations, checkpoints, pauses."""

from __future__ import annotations

import math

from stepscope.analyze.findings.finding import Finding, RunView, saving
from stepscope.analyze.wall_time import GAPS
from stepscope.units import format_count, format_duration, format_share

_MUCH = 0.05
_MUCH_EVALUATION = 0.3  # of the epochs of a run that evaluates once an epoch, which is usual
_WANTED_EVALUATION = 0.1
_OFTEN = 1.5  # evaluations for each epoch
_RARER = 10  # times
_FEW = 3  # evaluations of a run without epochs


def frequent_evaluation(view: RunView) -> Finding | None:
    """Report evaluations that take much of the run, and how many would do."""
    wall_s, count, epochs = (
        view.run.summary.get("wall_s"),
        len(view.evaluations),
        max(1, len(view.trained)),
    )
    total_s = sum(row["total_s"] for row in view.evaluations)
    if not wall_s or not count:
        return None
    # A short run is mostly imports: what is usual is a share of the epochs.
    of_epochs = total_s / (total_s + sum(row["total_s"] or 0.0 for row in view.trained))
    if epochs == 1 and count > _FEW:
        kept, change = 1 / _RARER, f"evaluate {_RARER} times less often"
    elif count > _OFTEN * epochs and epochs > 1:
        kept, change = epochs / count, "evaluate once an epoch"
    elif of_epochs > _MUCH_EVALUATION and count >= epochs > 1:
        every = min(epochs, math.ceil(of_epochs / _WANTED_EVALUATION))
        kept = math.ceil(epochs / every) / epochs
        change = f"evaluate every {every} epochs, or on fewer samples"
    else:
        return None
    return saving(
        view,
        "frequent_evaluation",
        f"Evaluation takes {format_share(total_s / wall_s)} of the run: {count} evaluations "
        f"in {format_count(epochs, 'epoch')}.",
        f"{format_duration(total_s / count)} for each evaluation",
        saves_s=total_s * (1 - kept),
        change=change,
        least=_MUCH,
    )


def frequent_checkpoints(view: RunView) -> Finding | None:
    """Report checkpoints that take much of the run."""
    wall_s, saved = view.run.summary.get("wall_s"), view.run.summary.get("checkpoints")
    if not wall_s or not saved or saved["total_s"] < _MUCH * wall_s or saved["count"] < 2:
        return None
    count, total_s = saved["count"], saved["total_s"]
    epochs = max(1, len(view.trained))
    often = count > _OFTEN * epochs
    kept = epochs if often else max(1, count // _RARER)
    return Finding(
        "frequent_checkpoints",
        f"Checkpoints take {format_share(total_s / wall_s)} of the run: {count:,} calls of "
        f"torch.save{_line_of(view, 'checkpoint')} in {format_count(epochs, 'epoch')}.",
        (f"{format_duration(total_s / count)} for each checkpoint",),
        weight=total_s / wall_s,
        saves_s=total_s * (1 - kept / count),
        change="save once an epoch" if often else f"save every {_RARER} epochs",
    )


def gaps_between_epochs(view: RunView) -> Finding | None:
    """Report the time between epochs that is no evaluation and no checkpoint."""
    summary = view.run.summary
    wall_s = summary.get("wall_s")
    gaps = [span for span in summary.get("wall_time") or () if span["part"] == GAPS]
    saved = summary.get("checkpoints")
    saved_s = saved["total_s"] - saved["in_steps_s"] if saved else 0.0
    total_s = sum(span["total_s"] for span in gaps) - saved_s
    if not wall_s or not gaps:
        return None
    return saving(
        view,
        "gaps_between_epochs",
        f"Pauses between epochs take {format_share(total_s / wall_s)} of the run"
        f"{_line_of(view, where='between epochs')}.",
        f"{format_count(len(gaps), 'pause')} of {format_duration(total_s / len(gaps))} on average, "
        "evaluations and checkpoints not counted",
        saves_s=total_s,
        change="move this work out of the loop over epochs",
        least=_MUCH,
    )


def _line_of(view: RunView, activity: str | None = None, where: str | None = None) -> str:
    """Return ` (train.py:41)` for the line of most samples of an activity or a place."""
    for each in view.run.summary.get("stacks") or ():
        if activity in (None, each["activity"]) and where in (None, each["where"]):
            return f" ({each['line']})" if each["line"] else ""
    return ""
