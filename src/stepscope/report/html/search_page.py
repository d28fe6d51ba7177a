"""The report of a search: its designs, their cost and their accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepscope.analyze.search_result import designs_of, rejected_of
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep
from stepscope.report.charts.search_charts import pareto_charts
from stepscope.report.html.page_content import Document, FigureList, Section, shown
from stepscope.report.terminal.search_table import figures_of
from stepscope.settings.load_settings import as_flags
from stepscope.units import format_bytes, format_count, format_share

_MOST_REJECTED = 50

Row = Mapping[str, Any]


def document_of_search(sweep: Sweep) -> Document:
    """Return the report of a search, finished or not."""
    rows, rejected = designs_of(sweep), rejected_of(sweep)
    budget = sweep.info.get("budget") or {}
    done = sum(trial.status == schema.COMPLETED for trial in sweep.trials)
    limits = ", ".join(f"{name} {limit:g}" for name, limit in budget.items())
    pareto = Section("Accuracy and what it costs", pareto_charts(rows, budget)).with_data()
    return Document(
        title=str(sweep.info.get("name") or sweep.path.name),
        subtitle=f"{len(rows)} designs within {limits}, {done} of {len(sweep.trials)} trials "
        f"completed, {len(rejected)} designs above the budget",
        verdict=list(_verdict(rows)),
        findings=[],
        figures=[_designs(rows)],
        sections=[pareto] if pareto.charts else [],
        values={"designs": rows, "rejected": rejected, "budget": dict(budget)},
        appendix=[_trainings(rows), _rejected(rejected)],
    )


def _verdict(rows: Sequence[Row]) -> Iterator[str]:
    known = [row for row in rows if row["validation_accuracy"] is not None]
    if not known:
        yield "No design was trained to be judged yet."
        return
    best = known[0]
    accuracy = format_share(best["validation_accuracy"])
    after = format_count(best["epochs"], "epoch")
    yield f"{best['model']} is the best on held-out samples: {accuracy} after {after}."
    yield f"It takes {figures_of(best)}."
    if best["test_accuracy"] is not None:
        yield (
            f"Trained on all samples and tested once: {format_share(best['test_accuracy'])}. "
            "No choice was made on the test set."
        )
    elif best["final_reason"]:
        yield f"Trained on all samples to be tested, it came to no end: {best['final_reason']}"


def _designs(rows: Sequence[Row]) -> FigureList:
    columns = ["design", "front", "energy, mJ", "cycles", "peak activation", "epochs"]
    return FigureList(
        "Designs",
        [*columns, "validation accuracy", "test accuracy"],
        [
            [
                row["model"],
                "yes" if row["on_front"] else "",
                f"{row['energy_mj']:.4g}",
                f"{row['cycles']:,.0f}",
                format_bytes(int(row["peak_activation_bytes"])),
                str(row["epochs"]),
                shown(row["validation_accuracy"], format_share),
                shown(row["test_accuracy"], format_share),
            ]
            for row in rows
        ],
        "Accuracy is of the longest training of each; the front is of accuracy, energy and cycles.",
    )


def _trainings(rows: Sequence[Row]) -> FigureList:
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


def _rejected(rejected: Sequence[Row]) -> FigureList:
    more = len(rejected) - _MOST_REJECTED
    return FigureList(
        "Above the budget",
        ["design", "energy, mJ", "cycles", "peak activation"],
        [
            [
                row["model"],
                f"{row['energy_mj']:.4g}",
                f"{row['cycles']:,.0f}",
                format_bytes(int(row["peak_activation_bytes"])),
            ]
            for row in rejected[:_MOST_REJECTED]
        ],
        f"{more:,} more are in sweep.json." if more > 0 else "",
    )
