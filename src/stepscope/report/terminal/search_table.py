"""A search: one line per design in progress, then a table of the trained designs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from stepscope.analyze.search_result import designs_of, rejected_of, settings_again
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep, Trial
from stepscope.records.types import DesignCosts, SearchedDesign, SettingValue
from stepscope.report.terminal.sweep_table import SweepDisplay
from stepscope.report.terminal.table_style import FigureList, print_figures, say
from stepscope.settings.load_settings import as_flags
from stepscope.units import (
    format_bytes,
    format_count,
    format_duration,
    format_known,
    format_share,
)

_SCORED = ([3, 32, 32], 10)  # the input and the classes that `stepscope accel score` assumes


class SearchDisplay(SweepDisplay):
    """Show designs and their trials on standard error."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._above = 0

    def proposed(
        self,
        number: int,
        values: Mapping[str, SettingValue],
        figures: Mapping[str, float],
        fits: bool,
    ) -> None:
        """Show the next design; those above the budget are only counted."""
        if not fits:
            self._above += 1
            return
        above = f", after {self._above} above the budget" if self._above else ""
        self._above = 0
        named = values.get("model", "another way of training")
        self._say(f"design {number}: {named}: {cost_of(figures)}{above}")

    def tried(self, trial: Trial) -> None:
        """Show the result of a design."""
        epochs = format_count(int(str(trial.values["epochs"])), "epoch")
        if trial.status != schema.COMPLETED:
            came_to = f"{trial.status.replace('_', ' ')}: {trial.reason}"
        else:
            split, accuracy = "validation", trial.metrics.get("validation_accuracy")
            if "test_at" in trial.values:
                split, accuracy = "test", trial.metrics.get("test_accuracy")
            reached = format_known(accuracy, format_share)
            took = format_duration(trial.metrics.get("wall_s") or 0.0)
            came_to = f"{split} accuracy {reached}, {took}"
        where = "" if trial.node is None else f", on {trial.node}"
        self._say(f"trial {trial.index + 1}, {epochs}, rung {trial.repeat}{where}: {came_to}")


def cost_of(design: DesignCosts | Mapping[str, float]) -> str:
    """Return the cost of a design on the accelerator as text."""
    energy, cycles, peak = cost_cells(design)
    return f"{energy} mJ, {cycles} cycles, {peak} at once"


def print_search(console: Console, sweep: Sweep) -> None:
    """Print every trained design with the Pareto front marked, and how to train the best."""
    rows = designs_of(sweep)
    print_figures(console, design_figures(rows))
    lines = ["* no other is better in accuracy, energy and cycles at once"] if rows else []
    lines.append(f"{len(rejected_of(sweep))} designs were above the budget, and not trained")
    for row in rows:
        lines += _troubles(row)
    if rows and rows[0]["validation_accuracy"] is not None:
        lines += _how_to_go_on(sweep, rows[0])
    lines.append(f"search: {sweep.path}")
    say(console, *lines)


def design_figures(rows: Sequence[SearchedDesign]) -> FigureList:
    """Return the table of the trained designs."""
    return FigureList(
        "Designs",
        ["design", "front", "energy, mJ", "cycles", "peak", "epochs", "validation", "test"],
        [
            [
                row["model"],
                "*" if row["on_front"] else "",
                *cost_cells(row),
                str(row["epochs"]),
                format_known(row["validation_accuracy"], format_share),
                format_known(row["test_accuracy"], format_share),
            ]
            for row in rows
        ],
        "Accuracy is of the longest training of each; the front is of accuracy, energy and cycles.",
    )


def cost_cells(row: DesignCosts | Mapping[str, float]) -> list[str]:
    """Return the energy, the cycles and the peak activation of a design."""
    peak = format_bytes(row["peak_activation_bytes"])
    return [f"{row['energy_mj']:.4g}", f"{row['cycles']:,.0f}", peak]


def _troubles(row: SearchedDesign) -> Iterator[str]:
    """Return the failures among the trainings of a design."""
    if row["status"] != schema.COMPLETED and row["reason"]:
        yield f"{row['model']}: {row['status'].replace('_', ' ')}: {row['reason']}"
    if row["final_status"] and row["final_status"] != schema.COMPLETED and row["final_reason"]:
        status = row["final_status"].replace("_", " ")
        yield f"{row['model']}, to be tested: {status}: {row['final_reason']}"


def _how_to_go_on(sweep: Sweep, best: SearchedDesign) -> Iterator[str]:
    """Yield the commands that train the best design again, and score it if it can be."""
    yield f"the best: stepscope run {as_flags(settings_again(sweep, best))}"
    layout = (sweep.info.get("input"), sweep.info.get("classes"))
    if best["final_status"] == schema.COMPLETED and best["final_run"] and layout == _SCORED:
        path = shlex.quote(str(sweep.path / best["final_run"]))
        accelerator = {"spatial": sweep.info["spatial"], "design": sweep.info["accelerator"]}
        yield f"its points: stepscope accel score {path} {as_flags(accelerator)}"
