"""CPU against accelerator: the same training on each device that this machine has."""

from __future__ import annotations

from pathlib import Path

from stepscope.experiments.labs.lab_plan import Plan
from stepscope.experiments.labs.lab_runner import LabFinding, Tools, found
from stepscope.experiments.labs.lab_trials import compare, in_words, try_settings
from stepscope.units import format_duration

_FIGURES = ("wall_s", "epoch_s", "samples_per_s", "peak_memory_bytes", "train_accuracy")


def investigate(plan: Plan, folder: Path, tools: Tools) -> LabFinding:
    """Run every device that is there, and say which are not."""
    tried, missing = try_settings(plan, folder, tools)
    rows = [each.row(*_FIGURES) for each in tried]
    known = [each for each in tried if each.completed]
    if not known:
        return found("No answer: no training completed.", False, rows, missing)
    first, *others = known
    name, wall_s = first.setting.values["device"], first.median_of("wall_s")
    if others:
        said = [
            f"{each.setting.values['device']} is {in_words(compare(first, each), str(name))}"
            for each in others
        ]
        return found(f"{'; '.join(said)}.", True, rows, missing)
    lacking = ", ".join(each["name"] for each in missing)
    took = "" if wall_s is None else f" It took {format_duration(wall_s)}."
    return found(
        f"Only {name} could be run, so there is nothing to compare; missing: {lacking}.{took}",
        True,
        rows,
        missing,
    )
