"""Optimisers, each at a shared learning rate and at its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.labs.lab_trials import Tried, best_of, curves_of, try_settings
from stepscope.units import format_count, format_duration, format_share

_RATES = {"shared": "at the shared rate", "own": "each at its own rate"}
_FIGURES = ("epoch_s", "wall_s", "loss", "train_accuracy")


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Train with every optimiser at both rates; accuracy is of a whole epoch, not of one batch."""
    tried, missing = try_settings(plan, folder, tools)
    rows = [_row(each) for each in tried]
    said = []
    for rate in dict.fromkeys(each.setting.shown["rate"] for each in tried):
        those = [each for each in tried if each.setting.shown["rate"] == rate]
        ahead = best_of(those, lambda each: each.median_of("train_accuracy"))
        if ahead is not None:
            best, accuracy = ahead
            said.append(
                f"{_RATES.get(rate, rate)} {best.setting.shown['optimiser']} is ahead with "
                f"{format_share(accuracy)} (lr {best.setting.values['lr']})"
            )
    if not said:
        return found("No answer: no training completed.", False, rows, missing)
    lasted = format_count(plan.spec.epochs, "epoch")
    answer = f"Training accuracy after {lasted}: {'; '.join(said)}.{_epochs(tried)}"
    if plan.repeats == 1:
        answer += " One run each: which of two that lie close is ahead cannot be told."
    return found(answer, True, rows, missing, curves_of(tried))


def _row(tried: Tried) -> dict[str, Any]:
    """Add each epoch's own time, loss and accuracy: none of them adds up over epochs."""
    by_epoch: dict[str, list[Any]] = {"epochs_s": [], "losses": [], "accuracies": []}
    for row in tried.curve():
        by_epoch["epochs_s"].append(row["total_s"])
        by_epoch["losses"].append(row["loss"])
        by_epoch["accuracies"].append(row["train_accuracy"])
    return {**tried.row(*_FIGURES), **by_epoch}


def _epochs(tried: list[Tried]) -> str:
    times = [each.median_of("epoch_s") for each in tried]
    known = [time for time in times if time is not None]
    return f" An epoch took {format_duration(min(known))} to {format_duration(max(known))}."
