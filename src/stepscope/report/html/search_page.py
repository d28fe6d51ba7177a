"""The report of a search: its designs, their cost and their accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from stepscope.analyze.search_result import designs_of, front, rejected_of
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep
from stepscope.records.types import RejectedDesign, SearchedDesign
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
    pareto = Section("Accuracy and what it costs", charts).with_data()
    return Document(
        title=str(sweep.info.get("name") or sweep.path.name),
        subtitle=f"{len(rows)} designs within {limits}, {done} of {len(sweep.trials)} trials "
        f"completed, {len(rejected)} designs above the budget",
        verdict=list(_verdict(rows)),
        findings=[],
        figures=[design_figures(rows)],
        sections=[pareto] if pareto.charts else [],
        values={"designs": rows, "rejected": rejected, "budget": dict(budget)},
        appendix=[_trainings(rows), _rejected(rejected)],
    )


def _verdict(rows: Sequence[SearchedDesign]) -> Iterator[str]:
    best = next((row for row in rows if row["validation_accuracy"] is not None), None)
    if best is None:
        yield "No design was trained to be judged yet."
        return
    accuracy = format_known(best["validation_accuracy"], format_share)
    after = format_count(best["epochs"], "epoch")
    yield f"{best['model']} is the best on held-out samples: {accuracy} after {after}."
    yield f"It takes {cost_of(best)}."
    if best["test_accuracy"] is not None:
        yield (
            f"Trained on all samples and tested once: {format_share(best['test_accuracy'])}. "
            "No choice was made on the test set."
        )
    elif best["final_reason"]:
        yield f"Trained on all samples to be tested, it came to no end: {best['final_reason']}"


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
    about = f"ringed: no other is better in accuracy and {name} at once"
    if limit is not None:
        about += f"; the budget is {limit:g}"
    y = "validation accuracy, %"
    return Chart(f"Accuracy by {name}", "scatter", _COSTS[cost], y, marks, about)


def _trainings(rows: Sequence[SearchedDesign]) -> FigureList:
    return FigureList(
        "How they were trained",
        ["design", "settings", "how it ended", "reason"],
        [
            [
                row["model"],
                as_flags(row["settings"]),
                row["status"].replace("_", " "),
                row["reason"] or "",
            ]
            for row in rows
        ],
    )


def _rejected(rejected: Sequence[RejectedDesign]) -> FigureList:
    more = len(rejected) - _MOST_REJECTED
    return FigureList(
        "Above the budget",
        ["design", "energy, mJ", "cycles", "peak"],
        [[row["model"], *cost_cells(row)] for row in rejected[:_MOST_REJECTED]],
        f"{more:,} more are in sweep.json." if more > 0 else "",
    )
