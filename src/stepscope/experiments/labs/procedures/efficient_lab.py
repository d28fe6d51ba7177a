"""Accurate networks that cost little energy and few cycles on an accelerator.

Training follows the rules of the course that set the task: SGD alone, fewer than 30 epochs, no
augmentation, no choice by the test set, which every run opens once, at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.accelerator.rubric import DESIGN, score
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_trials import LabResult, LabRow, SettingTrials, try_settings
from stepscope.experiments.sweep_run import SweepListener
from stepscope.records import schema
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
_PUBLISHED_ACCURACY = 0.7966
_PUBLISHED = {"energy_mj": 0.32204, "cycles": 46_344, "peak_activation_bytes": 98_304}


@dataclass(frozen=True)
class TrainedNetwork:
    """The seeds of one network, trained at one schedule, and its estimates by spatial spread."""

    model: str
    schedule: str
    trials: Sequence[SettingTrials]
    estimates: Mapping[str, NetworkEstimate]
    by_the_rules: bool = True

    @property
    def accuracies(self) -> list[float]:
        """The test accuracies of its seeds."""
        return [value for each in self.trials for value in each.values_of("test_accuracy")]

    @property
    def points(self) -> int | None:
        """The points of the least accurate seed: every seed has at least so many."""
        if not self.accuracies or not self.by_the_rules:
            return None
        cost = self.estimates[_LIMITS_ARE_OF]
        figures = (cost["energy_mj"], cost["cycles"], cost["peak_activation_bytes"])
        return score(min(self.accuracies), *figures).points

    @property
    def beats_published(self) -> bool:
        """Whether every seed is more accurate than the published one, and nothing costs more."""
        cost = self.estimates[_LIMITS_ARE_OF]
        return (
            min(self.accuracies) > _PUBLISHED_ACCURACY
            and cost["energy_mj"] <= _PUBLISHED["energy_mj"]
            and cost["cycles"] <= _PUBLISHED["cycles"]
            and cost["peak_activation_bytes"] <= _PUBLISHED["peak_activation_bytes"]
        )

    @property
    def _seeds(self) -> str:
        return ", ".join(str(each.setting.values["seed"]) for each in self.trials)

    def row(self) -> LabRow:
        """Return the mean, lowest and highest accuracy, and the estimates."""
        times_s = [value for each in self.trials for value in each.values_of("wall_s")]
        ended = (each.status for each in self.trials if not each.completed)
        row: LabRow = {
            "model": self.model,
            "schedule": self.schedule,
            "seeds": self._seeds,
            "status": next(ended, schema.COMPLETED),
            "test_accuracy": known_mean(self.accuracies),
            "test_accuracy_low": min(self.accuracies, default=None),
            "test_accuracy_high": max(self.accuracies, default=None),
            "wall_s": max(times_s, default=None),
            "peak_activation_bytes": self.estimates[_LIMITS_ARE_OF]["peak_activation_bytes"],
            "points": self.points,
        }
        for spread, each in self.estimates.items():
            row |= {f"energy_mj_{spread}": each["energy_mj"], f"cycles_{spread}": each["cycles"]}
        return row

    def in_words(self) -> str:
        """Say what the network reaches and costs and, where it has points, how it stands."""
        low, high = min(self.accuracies), max(self.accuracies)
        spread = ""
        if low != high:
            spread = f" ({format_share(low)} to {format_share(high)}, seeds {self._seeds})"
        cost = self.estimates[_LIMITS_ARE_OF]
        said = (
            f"{self.model}, {self.schedule} rate: "
            f"{format_share(known_mean(self.accuracies) or 0.0)}{spread}, "
            f"{cost['energy_mj']:.3f} mJ, {cost['cycles']:,} cycles, "
            f"{cost['peak_activation_bytes']:,} bytes"
        )
        if self.points is None:
            return f"{said}."
        better = ", more accurate than published and nowhere dearer" if self.beats_published else ""
        return f"{said}: {self.points} points{better}."


def run_lab(plan: Plan, folder: Path, listener: SweepListener) -> LabResult:
    """Train every network with its seeds, and estimate each for three ways to use the array."""
    models = dict.fromkeys(str(setting.values["model"]) for setting in plan.settings)
    listener.output(f"estimating {', '.join(models)}")
    estimates = {model: estimates_of(model) for model in models}
    # Other settings are the user's choice, and how they were chosen is unknown.
    choice = None if plan.changed else _CHOICE
    trials = try_settings(plan, folder, listener, choice=choice)
    groups: dict[tuple[str, str], list[SettingTrials]] = {}
    for each in trials.settings:
        values = each.setting.values
        groups.setdefault((str(values["model"]), str(values["schedule"])), []).append(each)
    by_the_rules = plan.spec.data == "cifar10" and plan.scale == 1 and not plan.changed
    networks = [
        TrainedNetwork(model, schedule, those, estimates[model], by_the_rules)
        for (model, schedule), those in groups.items()
    ]
    said = [network.in_words() for network in networks if network.accuracies]
    answer = " ".join(said) or "No answer: no training completed."
    if said and not by_the_rules:
        answer += " No points: they are for the whole lab on CIFAR-10 as its sheet has it."
    holds = bool(said) and all(each.completed for each in trials.settings)
    rows = [network.row() for network in networks]
    return LabResult(answer, holds, rows, trials.missing, trials.curves)


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
