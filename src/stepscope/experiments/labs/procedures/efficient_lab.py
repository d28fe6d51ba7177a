"""Train accurate networks that cost little energy and few cycles on an accelerator.

The rules of the course that set the task: SGD, fewer than 30 epochs, no augmentation, and no choice
by the test set, which every run uses once, at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.accelerator.rubric import DESIGN, score
from stepscope.experiments.labs.lab_answers import NOTHING_COMPLETED
from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_trials import LabResult, LabRow, SettingTrials, try_settings
from stepscope.experiments.sweep_run import SweepListener
from stepscope.records import schema
from stepscope.records.types import NetworkEstimate
from stepscope.stats import known_mean
from stepscope.units import format_share

# How the networks and their settings were chosen: recorded in every run.
_CHOICE = {
    "judged_on": "validation",
    "how": "designs and SGD's settings were compared on 5,000 held-out training images",
}
_IMAGE, _CLASSES = (3, 32, 32), 10
_PUBLISHED_ACCURACY = 0.7966
_PUBLISHED_COST = (0.32204, 46_344, 98_304)  # energy in mJ, cycles, peak activation in bytes


@dataclass(frozen=True)
class TrainedNetwork:
    """The seeds of one network, trained with one schedule, and its estimated cost."""

    model: str
    schedule: str
    trials: Sequence[SettingTrials]
    estimate: NetworkEstimate
    by_the_rules: bool = True

    @property
    def accuracies(self) -> list[float]:
        """The test accuracies of its seeds."""
        return [value for each in self.trials for value in each.values_of("test_accuracy")]

    @property
    def _cost(self) -> tuple[float, int, int]:
        cost = self.estimate
        return cost["energy_mj"], cost["cycles"], cost["peak_activation_bytes"]

    @property
    def points(self) -> int | None:
        """The points of the least accurate seed."""
        if not self.accuracies or not self.by_the_rules:
            return None
        return score(min(self.accuracies), *self._cost).points

    @property
    def beats_published(self) -> bool:
        """Whether every seed is more accurate than the published network, at no higher cost."""
        pairs = zip(self._cost, _PUBLISHED_COST, strict=True)
        no_dearer = all(cost <= published for cost, published in pairs)
        return no_dearer and min(self.accuracies) > _PUBLISHED_ACCURACY

    @property
    def _seeds(self) -> str:
        return ", ".join(str(each.setting.values["seed"]) for each in self.trials)

    def row(self) -> LabRow:
        """Return the mean, lowest and highest accuracy, and the cost."""
        times_s = [value for each in self.trials for value in each.values_of("wall_s")]
        ended = (each.status for each in self.trials if not each.completed)
        energy_mj, cycles, peak_bytes = self._cost
        return {
            "model": self.model,
            "schedule": self.schedule,
            "seeds": self._seeds,
            "status": next(ended, schema.COMPLETED),
            "test_accuracy": known_mean(self.accuracies),
            "test_accuracy_low": min(self.accuracies, default=None),
            "test_accuracy_high": max(self.accuracies, default=None),
            "wall_s": max(times_s, default=None),
            "energy_mj": energy_mj,
            "cycles": cycles,
            "peak_activation_bytes": peak_bytes,
            "points": self.points,
        }

    def describe(self) -> str:
        """Describe accuracy, cost and points."""
        low, high = min(self.accuracies), max(self.accuracies)
        spread = ""
        if low != high:
            spread = f" ({format_share(low)} to {format_share(high)}, seeds {self._seeds})"
        energy_mj, cycles, peak_bytes = self._cost
        points = "" if self.points is None else f": {self.points} points"
        if points and self.beats_published:
            points += ", more accurate than published at no higher cost"
        return (
            f"{self.model} with a {self.schedule} learning rate: "
            f"{format_share(known_mean(self.accuracies) or 0.0)}{spread}, "
            f"{energy_mj:.3f} mJ, {cycles:,} cycles, {peak_bytes:,} bytes{points}."
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
    networks = [
        TrainedNetwork(model, schedule, those, estimates[model], by_the_rules)
        for (model, schedule), those in groups.items()
    ]
    sentences = [network.describe() for network in networks if network.accuracies]
    holds = bool(sentences) and all(each.completed for each in trials.settings)
    if sentences and not by_the_rules:
        sentences.append("No points: only the unchanged lab on all of CIFAR-10 is scored.")
    answer = " ".join(sentences) or NOTHING_COMPLETED
    rows = [network.row() for network in networks]
    return LabResult(answer, holds, rows, trials.missing, trials.curves)


def estimate_of(model: str) -> NetworkEstimate:
    """Estimate a network for images of 32x32 and ten classes."""
    from stepscope.accelerator.design import load_design
    from stepscope.accelerator.estimate import estimate_network
    from stepscope.accelerator.mapper import Widths
    from stepscope.models import registry

    built = registry.build(model, classes=_CLASSES)
    return estimate_network(built, _IMAGE, model, load_design(DESIGN), Widths())
