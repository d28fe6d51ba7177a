"""Findings on the time outside the phases: the script's code in the loop, evaluations, pauses."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from stepscope.analyze.findings.finding import Finding, RunView, saving
from stepscope.analyze.wall_time import GAPS
from stepscope.analyze.what_binds import LOADING
from stepscope.records.types import StackTime
from stepscope.units import format_count, format_duration, format_share

_MUCH = 0.05  # of the wall time
_MUCH_EVALUATION = 0.3  # of the epochs of a run that evaluates once an epoch, which is usual
_WANTED_EVALUATION = 0.1
_OFTEN = 1.5  # evaluations for each epoch
_RARER = 10  # times
_FEW = 3  # evaluations of a run without epochs
_FEWEST_SAMPLES = 5  # of the stack
_OF_THE_LARGEST = 0.2  # the least of a further line that belongs to the same work
_RARER_STEPS = 50


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


# --- In the loop


class _Cause(NamedTuple):
    """What the text says, what to change, and which share of the time that saves."""

    name: str
    what: str
    change: str
    saves: float | None = 1.0


_CAUSES = {
    "synchronising read": _Cause(
        "synchronising_reads",
        "Reading values from tensors",
        f"read them once in {_RARER_STEPS} steps or so",
        1 - 1 / _RARER_STEPS,
    ),
    "logging": _Cause(
        "logging_in_loop",
        "Logging",
        f"log once in {_RARER_STEPS} steps or so",
        1 - 1 / _RARER_STEPS,
    ),
    LOADING: _Cause(
        "loading_in_loop", "Making batches", "load them in the workers of a DataLoader"
    ),
    "metric": _Cause("metrics_in_loop", "Computing metrics", "compute them once an epoch"),
    "garbage collection": _Cause(
        "garbage_collection", "Garbage collection", "leave out gc.collect() in the loop"
    ),
    # Training may need these, so nothing is promised.
    "gradient clipping": _Cause(
        "gradient_clipping", "Gradient clipping", "clip only if training needs it", None
    ),
    "scheduler": _Cause(
        "scheduler_in_loop", "The scheduler", "step the scheduler once an epoch", None
    ),
}
_WORK = _Cause("work_in_loop", "code", "move it out of the loop, or do it less often")
# torch's fused Adam is 3.2 to 5.0 times as fast as one written tensor by tensor.
_OWN_UPDATE = _Cause(
    "own_update",
    "script's own update of the weights",
    "use an optimiser of torch.optim with fused=True",
    2 / 3,
)
_UPDATES = re.compile(r"step\(|update\w*\(")
_OTHERWISE_FOUND = ("checkpoint", "compilation", "import")
_LINES = ""  # the group of lines whose activity is unknown
_EACH_STEP = ("other", "forward", "optimizer", "backward")


def work_in_loop(view: RunView) -> list[Finding]:
    """Report each activity, and the lines, that take much of the run outside the phases."""
    wall_s, phases = view.run.summary.get("wall_s"), view.run.summary.get("phases")
    if not wall_s or not phases:
        return []
    return [
        finding
        for activity, group in _groups(view).items()
        if (finding := _finding(view, activity, group, wall_s)) is not None
    ]


def _groups(view: RunView) -> dict[str, list[StackTime]]:
    groups: dict[str, list[StackTime]] = defaultdict(list)
    for each in view.run.summary.get("stacks") or ():
        activity, is_other = each["activity"], each["where"] == "other"
        if is_other and each.get("call") and activity in (None, "synchronising read"):
            groups[_LINES].append(each)  # a function of the script, whatever it does inside
        elif activity in _CAUSES and each["where"] in _EACH_STEP:
            groups[activity].append(each)
        elif activity not in _OTHERWISE_FOUND and is_other and each["line"]:
            groups[_LINES].append(each)
    groups[_LINES] = _by_call(groups[_LINES])
    return {activity: group for activity, group in groups.items() if group}


def _by_call(lines: list[StackTime]) -> list[StackTime]:
    """Add up the lines that one line of the training loop leads to, the longest first."""
    found: dict[str | None, StackTime] = {}
    for each in lines:
        line, code = each.get("call") or each["line"], each.get("called") or each["code"]
        entry = found.setdefault(
            line, {**each, "line": line, "code": code, "total_s": 0.0, "samples": 0}
        )
        entry["total_s"] += each["total_s"]
        entry["samples"] += each["samples"]
    return sorted(found.values(), key=lambda each: each["total_s"], reverse=True)


def _finding(view: RunView, activity: str, group: list[StackTime], wall_s: float) -> Finding | None:
    if not activity:
        group = [e for e in group if e["total_s"] >= _OF_THE_LARGEST * group[0]["total_s"]]
    total_s = _scaled_s(view, group)
    if sum(e["samples"] for e in group) < _FEWEST_SAMPLES or total_s < _MUCH * wall_s:
        return None
    lines = " and ".join(list(dict.fromkeys(e["line"] for e in group if e["line"]))[:2])
    if activity:
        cause = _CAUSES[activity]
        what = f"{cause.what} ({lines})" if lines else cause.what
    else:
        updates = view.run.summary.get("steps_inferred") and _UPDATES.search(group[0]["code"] or "")
        cause = _OWN_UPDATE if updates else _WORK
        what = f"The {cause.what} at {lines}"
    return Finding(
        cause.name,
        f"{what} takes {format_share(total_s / wall_s)} of the run, inside the training loop.",
        tuple(_evidence(group)),
        weight=min(1.0, total_s / wall_s),
        saves_s=None if cause.saves is None else cause.saves * total_s,
        change=cause.change,
    )


def _evidence(group: list[StackTime]) -> Iterator[str]:
    for each in group[:3]:
        where = f"{each['line']}: `{each['code']}`" if each["line"] else f"in `{each['where']}`"
        yield f"{where}, about {format_duration(each['total_s'])}"


def _scaled_s(view: RunView, group: list[StackTime]) -> float:
    """Return what a group costs: its share of `other`, which is timed exactly, and the rest.

    Beside an asynchronous device, the host's work costs no more than the device's idle time.
    """
    summary = view.run.summary
    stacks, phases = summary.get("stacks") or [], summary.get("phases") or {}
    sampled_s = sum(each["total_s"] for each in stacks if each["where"] == "other")
    other_s = phases["other"]["mean_s"] * len(view.run.steps) if "other" in phases else 0.0
    inside = sum(each["total_s"] for each in group if each["where"] == "other")
    outside = sum(each["total_s"] for each in group if each["where"] != "other")
    total_s = outside + (inside / sampled_s * other_s if sampled_s else 0.0)
    is_loading = all(each["activity"] == LOADING for each in group)
    idle_s = view.idle_device_s(*(("data",) if is_loading else ("host", "launch")))
    return total_s if idle_s is None else min(total_s, idle_s)
