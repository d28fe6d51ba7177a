"""The same network with and without its batch-norm layers: speed, parameters, accuracy."""

from __future__ import annotations

from pathlib import Path

from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.labs.lab_trials import compare, curves_of, in_words, try_settings
from stepscope.experiments.labs.network_counts import count
from stepscope.units import format_count, format_duration, format_share

_FIGURES = ("step_s", "samples_per_s", "loss", "train_accuracy", "peak_memory_bytes")


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Train both, and count what each has."""
    tried, missing = try_settings(plan, folder, tools)
    rows = []
    for each in tried:
        parameters = count(plan.spec.model, each.setting.values["norm"]).parameters
        rows.append({**each.row(*_FIGURES), "parameters": parameters})
    if len(rows) < 2 or not all(each.completed for each in tried):
        return found("No answer: one of the two did not complete.", False, rows, missing)
    fewer = rows[0]["parameters"] - rows[1]["parameters"]
    steps = " and ".join(format_duration(row["step_s"]) for row in rows)
    accuracies = " and ".join(
        "unknown" if row["train_accuracy"] is None else format_share(row["train_accuracy"])
        for row in rows
    )
    answer = (
        f"Without batch norm the network has {fewer:,} parameters fewer "
        f"({rows[1]['parameters']:,} of {rows[0]['parameters']:,}) and is "
        f"{in_words(compare(tried[0], tried[1]), 'with it')}. Step with and without: {steps}; "
        f"training accuracy after {format_count(plan.spec.epochs, 'epoch')}: {accuracies}."
    )
    return found(answer, True, rows, missing, curves_of(tried))
