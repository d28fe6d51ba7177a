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

    def __init__(self) -> None:
        super().__init__()
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
        named = values.get("model", "other training settings")
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
    return f"{energy} mJ, {cycles} cycles, peak activation {peak}"


def print_search(console: Console, sweep: Sweep) -> None:
    """Print every trained design with the Pareto front marked, and how to train the best."""
    rows = designs_of(sweep)
    print_figures(console, design_figures(rows))
    lines = ["* Pareto front of accuracy, energy and cycles"] if rows else []
    lines.append(f"{len(rejected_of(sweep))} designs were above the budget and not trained.")
    for row in rows:
        if row["status"] != schema.COMPLETED and row["reason"]:
            lines.append(f"{row['model']}: {row['status'].replace('_', ' ')}: {row['reason']}")
        final = row["final_status"]
        if final and final != schema.COMPLETED and row["final_reason"]:
            failed = f"{final.replace('_', ' ')}: {row['final_reason']}"
            lines.append(f"{row['model']}, final training: {failed}")
    lines.append(f"Search: {sweep.path}")
    best = rows[0] if rows else None
    if best is not None and best["validation_accuracy"] is not None:
        accuracy = format_share(best["validation_accuracy"])
        lines.append(f"Best: {best['model']}, {accuracy} validation accuracy, {cost_of(best)}.")
        lines += _next_commands(sweep, best)
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
        "Accuracy of the longest training of each design; * marks the Pareto front.",
    )


def cost_cells(row: DesignCosts | Mapping[str, float]) -> list[str]:
    """Return the energy, the cycles and the peak activation of a design."""
    peak = format_bytes(row["peak_activation_bytes"])
    return [f"{row['energy_mj']:.4g}", f"{row['cycles']:,.0f}", peak]


def _next_commands(sweep: Sweep, best: SearchedDesign) -> Iterator[str]:
    """Yield the commands that train the best design again, and score it if it can be."""
    yield f"Train it: stepscope run {as_flags(settings_again(sweep, best))}"
    layout = (sweep.info.get("input"), sweep.info.get("classes"))
    if best["final_status"] == schema.COMPLETED and best["final_run"] and layout == _SCORED:
        path = shlex.quote(str(sweep.path / best["final_run"]))
        accelerator = {"spatial": sweep.info["spatial"], "design": sweep.info["accelerator"]}
        yield f"Score it: stepscope accel score {path} {as_flags(accelerator)}"
