"""The report of a search: its designs, their cost and their accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from stepscope.analyze.search_result import designs_of, front, rejected_of
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep
from stepscope.records.types import SearchedDesign
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.html.page_content import Document, Section
from stepscope.report.terminal.search_table import cost_cells, cost_of, design_figures
from stepscope.report.terminal.table_style import FigureList
from stepscope.settings.load_settings import as_flags
from stepscope.units import format_count, format_known, format_share

_MOST_REJECTED = 50
Cost = Literal["energy_mj", "cycles"]
_COSTS: dict[Cost, str] = {
    "energy_mj": "energy of an inference, mJ",
    "cycles": "cycles of an inference",
}


def document_of_search(sweep: Sweep) -> Document:
    """Return the report of a search, finished or not."""
    rows, rejected = designs_of(sweep), rejected_of(sweep)
    budget = sweep.info.get("budget") or {}
    done = sum(trial.status == schema.COMPLETED for trial in sweep.trials)
    limits = ", ".join(f"{name} {limit:g}" for name, limit in budget.items())
    charts = [_pareto_chart(rows, cost, budget.get(cost)) for cost in _COSTS]
    pareto = Section("Accuracy and cost", charts).with_data()
    trainings = [
        [
            row["model"],
            as_flags(row["settings"]),
            row["status"].replace("_", " "),
            row["reason"] or "",
        ]
        for row in rows
    ]
    too_costly = [[row["model"], *cost_cells(row)] for row in rejected[:_MOST_REJECTED]]
    more = len(rejected) - len(too_costly)
    return Document(
        title=str(sweep.info.get("name") or sweep.path.name),
        subtitle=f"{len(rows)} designs within {limits}, {done} of {len(sweep.trials)} trials "
        f"completed, {len(rejected)} designs above the budget",
        verdict=list(_verdict(rows)),
        findings=[],
        figures=[design_figures(rows)],
        sections=[pareto] if pareto.charts else [],
        values={"designs": rows, "rejected": rejected, "budget": dict(budget)},
        appendix=[
            FigureList("Trainings", ["design", "settings", "status", "reason"], trainings),
            FigureList(
                "Above the budget",
                ["design", "energy, mJ", "cycles", "peak"],
                too_costly,
                f"{more:,} more are in sweep.json." if more else "",
            ),
        ],
    )


def _verdict(rows: Sequence[SearchedDesign]) -> Iterator[str]:
    best = next((row for row in rows if row["validation_accuracy"] is not None), None)
    if best is None:
        yield "No design has been evaluated yet."
        return
    accuracy = format_known(best["validation_accuracy"], format_share)
    after = format_count(best["epochs"], "epoch")
    yield f"{best['model']} has the highest validation accuracy: {accuracy} after {after}."
    yield f"It needs {cost_of(best)}."
    if best["test_accuracy"] is not None:
        accuracy = format_share(best["test_accuracy"])
        yield f"Trained on all samples, it reaches {accuracy} on the test set, used only once."
    elif best["final_reason"]:
        yield f"The final training on all samples failed: {best['final_reason']}"


def _pareto_chart(rows: Sequence[SearchedDesign], cost: Cost, limit: float | None) -> Chart:
    """Return the chart of accuracy against a cost, with its Pareto front."""
    known = [
        (row, accuracy)
        for row in sorted(rows, key=lambda row: row["epochs"])
        if (accuracy := row["validation_accuracy"]) is not None
    ]
    ringed = front([(accuracy, -row[cost]) for row, accuracy in known])
    marks = [
        ChartMark(
            row[cost], accuracy * 100, format_count(row["epochs"], "epoch"), chosen=place in ringed
        )
        for place, (row, accuracy) in enumerate(known)
    ]
    name = cost.partition("_")[0]
    about = f"ringed: Pareto front of accuracy and {name}"
    if limit is not None:
        about += f"; the budget is {limit:g}"
    y = "validation accuracy, %"
    return Chart(f"Accuracy by {name}", "scatter", _COSTS[cost], y, marks, about)
