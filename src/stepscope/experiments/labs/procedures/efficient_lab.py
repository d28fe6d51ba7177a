"""Train accurate networks that cost little energy and few cycles on an accelerator.

The rules of the course that set the task: SGD, fewer than 30 epochs, no augmentation, and no choice
by the test set, which every run uses once, at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from stepscope.accelerator.rubric import DESIGN, score
from stepscope.experiments.labs.lab_answers import NOTHING_COMPLETED
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_trials import LabResult, SettingTrials, try_settings
from stepscope.experiments.sweep_run import SweepListener
from stepscope.records import schema
from stepscope.records.types import NetworkEstimate
from stepscope.stats.intervals import known_mean
from stepscope.units import format_share

# How the networks and their settings were chosen: recorded in every run.
_CHOICE = {
    "judged_on": "validation",
    "how": "designs and SGD's settings were compared on 5,000 held-out training images",
}
_IMAGE, _CLASSES = (3, 32, 32), 10
_PUBLISHED_ACCURACY = 0.7966
_PUBLISHED_COST = {"energy_mj": 0.32204, "cycles": 46_344, "peak_activation_bytes": 98_304}


def row_of(
    trials: Sequence[SettingTrials], estimate: Mapping[str, Any], *, by_the_rules: bool
) -> dict[str, Any]:
    """Return the accuracies and the cost of a network, and the points of its worst seed."""
    values = trials[0].setting.values
    accuracies = [value for each in trials for value in each.values_of("test_accuracy")]
    times_s = [value for each in trials for value in each.values_of("wall_s")]
    ended = (each.status for each in trials if not each.completed)
    cost = {name: estimate[name] for name in _PUBLISHED_COST}
    scored = bool(accuracies) and by_the_rules
    return {
        "model": values["model"],
        "schedule": values["schedule"],
        "seeds": ", ".join(str(each.setting.values["seed"]) for each in trials),
        "status": next(ended, schema.COMPLETED),
        "test_accuracy": known_mean(accuracies),
        "test_accuracy_low": min(accuracies, default=None),
        "test_accuracy_high": max(accuracies, default=None),
        "wall_s": max(times_s, default=None),
        **cost,
        "points": score(min(accuracies), *cost.values()).points if scored else None,
    }


def beats_published(row: Mapping[str, Any]) -> bool:
    """Return whether every seed is more accurate than the published network, at no higher cost."""
    no_dearer = all(row[name] <= cost for name, cost in _PUBLISHED_COST.items())
    return no_dearer and row["test_accuracy_low"] > _PUBLISHED_ACCURACY


def describe(row: Mapping[str, Any]) -> str:
    """Describe the accuracy, the cost and the points of a network that completed."""
    low, high = row["test_accuracy_low"], row["test_accuracy_high"]
    spread = ""
    if low != high:
        spread = f" ({format_share(low)} to {format_share(high)}, seeds {row['seeds']})"
    points = "" if row["points"] is None else f": {row['points']} points"
    if points and beats_published(row):
        points += ", more accurate than published at no higher cost"
    return (
        f"{row['model']} with a {row['schedule']} learning rate: "
        f"{format_share(row['test_accuracy'])}{spread}, {row['energy_mj']:.3f} mJ, "
        f"{row['cycles']:,} cycles, {row['peak_activation_bytes']:,} bytes{points}."
    )


def run_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Train every network with its seeds, and estimate its cost."""
    models = dict.fromkeys(str(setting.values["model"]) for setting in plan.settings)
    listener.output(f"estimating {', '.join(models)}")
    estimates = {model: estimate_of(model) for model in models}
    # How the user chose other settings is unknown.
    choice = None if plan.changed else _CHOICE
    trials = try_settings(plan, folder, listener, choice=choice)
    groups: dict[tuple[str, str], list[SettingTrials]] = {}
    for each in trials.settings:
        values = each.setting.values
        groups.setdefault((str(values["model"]), str(values["schedule"])), []).append(each)
    by_the_rules = plan.spec.data == "cifar10" and plan.scale == 1 and not plan.changed
    rows = [
        row_of(those, cast("Mapping[str, Any]", estimates[model]), by_the_rules=by_the_rules)
        for (model, _), those in groups.items()
    ]
    sentences = [describe(row) for row in rows if row["test_accuracy"] is not None]
    holds = bool(sentences) and all(each.completed for each in trials.settings)
    if sentences and not by_the_rules:
        sentences.append("No points: only the unchanged lab on all of CIFAR-10 is scored.")
    answer = " ".join(sentences) or NOTHING_COMPLETED
    return LabResult(answer, holds, rows, trials.missing, trials.curves)


def estimate_of(model: str) -> NetworkEstimate:
    """Estimate a network for images of 32x32 and ten classes."""
    from stepscope.accelerator.design import load_design
    from stepscope.accelerator.estimate import estimate_network
    from stepscope.accelerator.mapper import Widths
    from stepscope.models import registry

    built = registry.build(model, classes=_CLASSES)
    return estimate_network(built, _IMAGE, model, load_design(DESIGN), Widths())
