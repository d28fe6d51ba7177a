"""Findings on the script's own code in the training loop, outside the phases."""

from __future__ import annotations

from collections import defaultdict

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.records.types import StackTime
from stepscope.units import format_duration, format_share

_MUCH = 0.05  # of the wall time
_FEWEST_SAMPLES = 5

# The cause, what the text says, and what to change, by the activity of samples.
_CAUSES = {
    "synchronising read": (
        "synchronising_reads",
        "Reading values from tensors",
        "read values once in 50 steps or so, or keep them on the device",
    ),
    "logging": ("logging_in_loop", "Logging", "log once in 50 steps or so"),
    "metric": ("metrics_in_loop", "Computing metrics", "compute metrics once an epoch"),
    "gradient clipping": (
        "gradient_clipping",
        "Gradient clipping",
        "use clip_grad_norm_ with foreach=True",
    ),
    "scheduler": ("scheduler_in_loop", "The scheduler", "step the scheduler once an epoch"),
    "garbage collection": (
        "garbage_collection",
        "Garbage collection",
        "leave out gc.collect() in the loop",
    ),
    "compilation": (
        "compilation",
        "Compiling",
        "keep shapes and types constant so that nothing is compiled again",
    ),
}
_EACH_STEP = ("other", "forward", "optimizer", "backward")


def work_in_loop(view: RunView) -> Finding | None:
    """Report the activity, or the line, that takes most of the time outside the phases."""
    summary = view.run.summary
    wall_s, stacks, phases = summary.get("wall_s"), summary.get("stacks"), summary.get("phases")
    if not wall_s or not stacks or not phases:
        return None
    groups: dict[str, list[StackTime]] = defaultdict(list)
    for each in stacks:
        named = each["activity"] in _CAUSES
        if each["where"] == "other" and each["activity"] != "checkpoint":
            groups[each["activity"] if named else each["line"] or "?"].append(each)  # type: ignore[index]
        elif each["where"] in _EACH_STEP and named:
            groups[str(each["activity"])].append(each)
    if not groups:
        return None
    name, largest = max(groups.items(), key=lambda group: sum(e["total_s"] for e in group[1]))
    total_s = _scaled_s(view, largest)
    if sum(e["samples"] for e in largest) < _FEWEST_SAMPLES or total_s < _MUCH * wall_s:
        return None
    lines = list(dict.fromkeys(e["line"] for e in largest if e["line"]))
    cause, what, change = _CAUSES.get(
        name,
        ("work_in_loop", f"The code at {name}", "move it out of the loop, or do it less often"),
    )
    at = f" ({', '.join(lines[:2])})" if name in _CAUSES and lines else ""
    return Finding(
        cause,
        f"{what}{at} takes {format_share(total_s / wall_s)} of the run, inside the training loop.",
        tuple(
            f"{e['line']}: `{e['code']}`, about {format_duration(e['total_s'])}"
            for e in largest[:3]
            if e["line"]
        ),
        None,
        total_s / wall_s,
        saves_s=total_s,
        change=change,
    )


def _scaled_s(view: RunView, group: list[StackTime]) -> float:
    """Return the time of samples; in `other`, which is timed exactly, their share of that."""
    stacks = view.run.summary.get("stacks") or []
    sampled_s = sum(each["total_s"] for each in stacks if each["where"] == "other")
    phases = view.run.summary.get("phases") or {}
    other_s = phases["other"]["mean_s"] * len(view.run.steps) if "other" in phases else 0.0
    inside = sum(each["total_s"] for each in group if each["where"] == "other")
    outside = sum(each["total_s"] for each in group if each["where"] != "other")
    return outside + (inside / sampled_s * other_s if sampled_s else 0.0)
