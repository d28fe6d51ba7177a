"""Time and memory of a mini-batch by its size; then accuracy against time, at two kinds of rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.labs.lab_trials import Tried, curves_of, try_settings
from stepscope.units import format_bytes, format_count, format_duration, format_share

_FIGURES = (
    "step_s",
    "phases.data",
    "phases.transfer",
    "phases.forward",
    "phases.backward",
    "phases.optimizer",
    "phases.other",
    "samples_per_s",
    "peak_memory_bytes",
    "test_accuracy",
    "wall_s",
)
_BY_SIZE: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("a step takes", "step_s", format_duration),
    ("the peak of memory is", "peak_memory_bytes", format_bytes),
)
_CHANCE = 0.1  # ten classes
_SMALL = 32  # the published claim is about batches up to this


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Train with every batch size, the learning rate kept and the learning rate scaled."""
    tried, missing = try_settings(plan, folder, tools)
    rows = [each.row(*_FIGURES) for each in tried]
    known = [each for each in tried if each.median_of("test_accuracy") is not None]
    if not known:
        return found("No answer: no training completed.", False, rows, missing)
    said = [_claim(known, plan.spec.epochs)]
    for words, figure, show in _BY_SIZE:
        ends = [(_size(each), each.median_of(figure)) for each in (known[0], known[-1])]
        told = [f"{show(value)} at batch {size}" for size, value in ends if value is not None]
        said.append(f"{words} {' and '.join(told)}")
    return found("; ".join(said) + ".", True, rows, missing, curves_of(tried))


def _claim(known: list[Tried], epochs: int) -> str:
    """Say whether small batches lead to less training, as was published."""
    small = [each for each in known if int(_size(each)) <= _SMALL]
    large = [each for each in known if int(_size(each)) > _SMALL]
    if not small or not large:
        return "Batches on both sides of 32 are needed to check what was published"
    best_small, best_large = (
        max(side, key=lambda each: each.median_of("test_accuracy") or 0.0)
        for side in (small, large)
    )
    accuracy = best_small.median_of("test_accuracy") or 0.0
    learned = "do" if accuracy > 2 * _CHANCE else "do not yet"
    lasted = format_count(epochs, "epoch")
    return (
        f"Batches of {_SMALL} and less {learned} lead to training in {lasted}: "
        f"{_reached(best_small)}, against {_reached(best_large)}"
    )


def _reached(tried: Tried) -> str:
    accuracy = format_share(tried.median_of("test_accuracy") or 0.0)
    rate = f"lr {float(tried.setting.values['lr']):g}, {tried.setting.shown['rate']}"
    return f"{accuracy} test accuracy at batch {_size(tried)} ({rate})"


def _size(tried: Tried) -> str:
    return str(tried.setting.values["batch_size"])
