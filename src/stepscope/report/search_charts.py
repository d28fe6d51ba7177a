"""The charts of a search: accuracy against energy and against cycles, each with its own front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyze.pareto import front
from stepscope.report.charts import Chart, Mark
from stepscope.units import format_count

Row = Mapping[str, Any]

_COSTS = {"energy_mj": "energy of an inference, mJ", "cycles": "cycles of an inference"}


def pareto_charts(rows: Sequence[Row], budget: Mapping[str, float]) -> list[Chart]:
    """Describe a chart for each cost; `rows` are those of `analyze.search_result`."""
    return [_chart(rows, budget.get(cost), cost, title) for cost, title in _COSTS.items()]


def _chart(rows: Sequence[Row], limit: float | None, cost: str, title: str) -> Chart:
    known = sorted(
        (row for row in rows if row["validation_accuracy"] is not None),
        key=lambda row: int(row["epochs"]),
    )
    ringed = front([(row["validation_accuracy"], -row[cost]) for row in known])
    marks = [
        Mark(
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
