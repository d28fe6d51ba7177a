"""Accuracy against time and memory, by architecture."""

from __future__ import annotations

from pathlib import Path

from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.labs.lab_trials import best_of, curves_of, try_settings
from stepscope.experiments.labs.network_counts import count_for
from stepscope.settings.load_settings import with_changes
from stepscope.units import format_bytes, format_count, format_share

_FIGURES = ("samples_per_s", "epoch_s", "wall_s", "peak_memory_bytes", "test_accuracy")


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Train every network on the same data, and count what each has for it."""
    tried, missing = try_settings(plan, folder, tools)
    rows = []
    for each in tried:
        network = count_for(with_changes(plan.asked, each.setting.values))
        counted = {"parameters": network.parameters, "convolutions": network.convolutions}
        rows.append({**each.row(*_FIGURES), **counted})
    most = best_of(tried, lambda each: each.median_of("test_accuracy"))
    fastest = best_of(tried, lambda each: each.median_of("samples_per_s"))
    least = best_of(tried, lambda each: _less(each.median_of("peak_memory_bytes")))
    if most is None or fastest is None:
        return found("No answer: no training completed.", False, rows, missing)
    name = {id(each): each.setting.values["model"] for each in tried}
    epochs = format_count(plan.spec.epochs, "epoch")
    answer = (
        f"After {epochs} {name[id(most[0])]} is the most accurate "
        f"({format_share(most[1])} of the test samples), {name[id(fastest[0])]} the fastest "
        f"({fastest[1]:,.0f} samples/s)"
    )
    if least is not None:
        answer += f", {name[id(least[0])]} the smallest ({format_bytes(-least[1])} at its peak)"
    if plan.repeats == 1:
        answer += ". One run each: those that lie close cannot be told apart"
    return found(f"{answer}.", True, rows, missing, curves_of(tried))


def _less(value: float | None) -> float | None:
    return None if value is None else -value
