"""Accurate networks that cost little energy and few cycles on an accelerator.

Training follows the rules of the course that set the task: SGD alone, fewer than 30 epochs, no
augmentation, no choice by the test set, which every run opens once, at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.accelerator.rubric import DESIGN, score
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.labs.lab_trials import Tried, curves_of, try_settings
from stepscope.records.types import NetworkEstimate
from stepscope.stats import known_mean
from stepscope.units import format_share

# How the networks and their settings were chosen: goes into the record of every run.
_CHOICE = {
    "judged_on": "validation",
    "how": "designs and SGD's settings were compared on 5,000 training images that were held out",
}
_SPATIAL = {"free": None, "8x16": (8, 16), "16x16": (16, 16)}
_LIMITS_ARE_OF = "free"
_IMAGE, _CLASSES = (3, 32, 32), 10
_PUBLISHED = {
    "accuracy": 0.7966,
    "energy_mj": 0.32204,
    "cycles": 46_344,
    "peak_activation_bytes": 98_304,
}


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Train every network with its seeds, and estimate each for three ways to use the array."""
    networks = dict.fromkeys(setting.values["model"] for setting in plan.settings)
    tools.say(f"estimating {', '.join(networks)}")
    estimates = {model: estimates_of(model) for model in networks}
    # Other settings are the user's choice, and how they were chosen is unknown.
    choice = None if plan.changed else _CHOICE
    tried, missing = try_settings(plan, folder, tools, choice=choice)
    groups: dict[tuple[str, str], list[Tried]] = {}
    for each in tried:
        key = (each.setting.values["model"], each.setting.values["schedule"])
        groups.setdefault(key, []).append(each)
    rows = [
        row_of(model, schedule, those, estimates[model])
        for (model, schedule), those in groups.items()
    ]
    by_the_rules = plan.spec.data == "cifar10" and plan.scale == 1 and not plan.changed
    if by_the_rules:
        rows = [{**row, "points": points_of(row)} for row in rows]
    said = [in_words(row) for row in rows if row["test_accuracy"] is not None]
    complete = all(each.completed for each in tried)
    answer = " ".join(said) or "No answer: no training completed."
    if said and not by_the_rules:
        answer += " No points: they are for the whole lab on CIFAR-10 as its sheet has it."
    return found(answer, bool(said) and complete, rows, missing, curves_of(tried))


def estimates_of(model: str) -> dict[str, NetworkEstimate]:
    """Estimate a network for every spatial spread, for images of 32x32 and ten classes."""
    from stepscope.accelerator.design import load_design
    from stepscope.accelerator.estimate import estimate_network
    from stepscope.accelerator.mapper import Widths
    from stepscope.models import registry

    design, built = load_design(DESIGN), registry.build(model, classes=_CLASSES)
    widths = {name: Widths(*pair) if pair else Widths() for name, pair in _SPATIAL.items()}
    return {
        name: estimate_network(built, _IMAGE, model, design, each) for name, each in widths.items()
    }


def row_of(
    model: str, schedule: str, tried: Sequence[Tried], estimates: Mapping[str, NetworkEstimate]
) -> dict[str, Any]:
    """Put the seeds of one network together: mean, lowest, highest accuracy, and the estimate."""
    accuracies = [value for each in tried for value in each.values_of("test_accuracy")]
    times_s = [value for each in tried for value in each.values_of("wall_s")]
    row: dict[str, Any] = {
        "model": model,
        "schedule": schedule,
        "seeds": ", ".join(str(each.setting.values["seed"]) for each in tried),
        "status": next((each.status for each in tried if not each.completed), "completed"),
        "test_accuracy": known_mean(accuracies),
        "test_accuracy_low": min(accuracies, default=None),
        "test_accuracy_high": max(accuracies, default=None),
        "wall_s": max(times_s, default=None),
        "peak_activation_bytes": estimates[_LIMITS_ARE_OF]["peak_activation_bytes"],
        "points": None,
    }
    for name, estimate in estimates.items():
        row |= {f"energy_mj_{name}": estimate["energy_mj"], f"cycles_{name}": estimate["cycles"]}
    return row


def points_of(row: Mapping[str, Any]) -> int | None:
    """Return the points of the least accurate seed: every seed has at least so many."""
    if row["test_accuracy_low"] is None:
        return None
    figures = (row["energy_mj_free"], row["cycles_free"], row["peak_activation_bytes"])
    return score(row["test_accuracy_low"], *figures).points


def in_words(row: Mapping[str, Any]) -> str:
    """Say what a network reaches and costs and, where it has points, how it stands."""
    spread = ""
    if row["test_accuracy_low"] != row["test_accuracy_high"]:
        low, high = map(format_share, (row["test_accuracy_low"], row["test_accuracy_high"]))
        spread = f" ({low} to {high}, seeds {row['seeds']})"
    said = (
        f"{row['model']}, {row['schedule']} rate: {format_share(row['test_accuracy'])}{spread}, "
        f"{row['energy_mj_free']:.3f} mJ, {row['cycles_free']:,} cycles, "
        f"{row['peak_activation_bytes']:,} bytes"
    )
    if row["points"] is None:
        return f"{said}."
    if beats(row):
        return f"{said}: {row['points']} points, more accurate than published and nowhere dearer."
    return f"{said}: {row['points']} points."


def beats(row: Mapping[str, Any]) -> bool:
    """Say whether every seed is more accurate than the published one, and nothing costs more."""
    return bool(
        row["test_accuracy_low"] > _PUBLISHED["accuracy"]
        and row["energy_mj_free"] <= _PUBLISHED["energy_mj"]
        and row["cycles_free"] <= _PUBLISHED["cycles"]
        and row["peak_activation_bytes"] <= _PUBLISHED["peak_activation_bytes"]
    )
