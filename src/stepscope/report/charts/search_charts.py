"""The charts of a search and of an accelerator estimate.

A search shows accuracy against energy and against cycles, each with its Pareto front; an estimate
shows the energy of each layer by level of the memory hierarchy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyze.search_result import front
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.units import format_count

Row = Mapping[str, Any]

_COSTS = {"energy_mj": "energy of an inference, mJ", "cycles": "cycles of an inference"}


def pareto_charts(rows: Sequence[Row], budget: Mapping[str, float]) -> list[Chart]:
    """Return a chart for each cost; `rows` are those of `analyze.search_result`."""
    return [_chart(rows, budget.get(cost), cost, title) for cost, title in _COSTS.items()]


def _chart(rows: Sequence[Row], limit: float | None, cost: str, title: str) -> Chart:
    known = sorted(
        (row for row in rows if row["validation_accuracy"] is not None),
        key=lambda row: int(row["epochs"]),
    )
    ringed = front([(row["validation_accuracy"], -row[cost]) for row in known])
    marks = [
        ChartMark(
            row[cost],
            row["validation_accuracy"] * 100,
            format_count(row["epochs"], "epoch"),
            chosen=place in ringed,
        )
        for place, row in enumerate(known)
    ]
    name = cost.partition("_")[0]
    about = f"ringed: no other is better in accuracy and {name} at once"
    within = "" if limit is None else f"; the budget is {limit:g}"
    return Chart(
        f"Accuracy by {name}", "scatter", title, "validation accuracy, %", marks, about + within
    )


# --- Accelerator estimate


LEVELS = ("dram", "buffer", "scratchpad", "registers", "mac")


def energy_chart(found: Mapping[str, Any]) -> Chart:
    """Return the chart of an estimate, from the mapping that `estimate --json` prints."""
    layers: Sequence[Mapping[str, Any]] = found.get("layers") or [{**found, "name": "the layer"}]
    marks = [
        ChartMark(layer["name"], layer["energy_uj_by_level"][level], level)
        for layer in layers
        for level in LEVELS
    ]
    about = f"{found['energy_mj']:.4g} mJ and {found['cycles']:,} cycles on {found['design']}"
    title = f"Energy of {found['model']}" if "model" in found else "Energy of a layer"
    return Chart(title, "rows", "", "energy, uJ", marks, about)
