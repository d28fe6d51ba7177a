"""Findings on the script's own code in the training loop, outside the phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.records.types import StackTime
from stepscope.units import format_duration, format_share

_MUCH = 0.05  # of the wall time
_FEWEST_SAMPLES = 5
_OF_THE_LARGEST = 0.2  # the least of a further line that belongs to the same work
_RARER = 50  # steps


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
        f"read them once in {_RARER} steps or so",
        1 - 1 / _RARER,
    ),
    "logging": _Cause(
        "logging_in_loop", "Logging", f"log once in {_RARER} steps or so", 1 - 1 / _RARER
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
        activity = each["activity"]
        if activity in _CAUSES and each["where"] in _EACH_STEP:
            groups[activity].append(each)
        elif activity not in _OTHERWISE_FOUND and each["where"] == "other" and each["line"]:
            groups[_LINES].append(each)
    return groups


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
        cause = _Cause("work_in_loop", "", "move it out of the loop, or do it less often")
        what = f"The code at {lines}"
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
    return total_s if view.idle_device_s is None else min(total_s, view.idle_device_s)
