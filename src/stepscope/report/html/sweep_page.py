"""The report of several runs, or of a sweep: the fastest, and how certain that is."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.analyze.comparison import compare, compare_settings
from stepscope.analyze.comparison_sides import Group, groups_of, name_of, side_of_group
from stepscope.analyze.comparison_verdict import best_of
from stepscope.analyze.sweep_summary import rate_interval, rows_of
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep
from stepscope.records.types import CompareAnswer, GroupFigures, GroupRow
from stepscope.report.charts.sweep_charts import sections_of_groups, sweep_chart
from stepscope.report.html.page_content import Document, Section
from stepscope.report.html.run_page import about
from stepscope.report.terminal.sweep_table import SETTING_COLUMNS, setting_cells
from stepscope.report.terminal.table_style import FigureList
from stepscope.stats.intervals import known_median


def document_of_groups(groups: Sequence[Group]) -> Document:
    """Return the report of several runs."""
    rows = [_row(group) for group in groups]
    count = sum(len(group.runs) for group in groups)
    runs = FigureList(
        "Runs",
        ["run", "group", "training"],
        [[run.path.name, group.name, about(run)] for group in groups for run in group.runs],
    )
    names = "; ".join(group.name for group in groups)
    found = None if len(groups) < 2 else compare([side_of_group(group) for group in groups])
    return _document(f"{count} runs", names, rows, sections_of_groups(groups), runs, found)


def document_of_sweep(sweep: Sweep) -> Document:
    """Return the report of a sweep, finished or not."""
    settings = rows_of(sweep)
    rows: list[GroupRow] = [{**row, "name": name_of(row["values"])} for row in settings]
    trials = FigureList(
        "Trials",
        ["trial", "setting", "round", "status", "reason"],
        [
            [
                *(str(each.index), name_of(each.values), str(each.repeat)),
                *(each.status.replace("_", " "), each.reason or ""),
            ]
            for each in sweep.trials
        ],
    )
    done = sum(trial.status == schema.COMPLETED for trial in sweep.trials)
    title = str(sweep.info.get("name") or sweep.path.name)
    count = f"{len(rows)} settings, {done} of {len(sweep.trials)} trials completed"
    found = compare_settings(sweep)
    best = None if found is None else best_of(found["others"])
    chart = sweep_chart(settings, None if best is None else best["name"])
    sections = sections_of_groups(groups_of(sweep), chart)
    return _document(title, count, rows, sections, trials, found)


def _document(
    title: str,
    subtitle: str,
    rows: list[GroupRow],
    sections: Sequence[Section],
    appendix: FigureList,
    found: CompareAnswer | None,
) -> Document:
    cells = [[row["name"], *setting_cells(row)] for row in rows]
    figures = FigureList("Side by side", ["setting", *SETTING_COLUMNS], cells)
    values: GroupFigures = {"groups": rows}
    sentences, command = [_sentence(rows)], None
    if found is not None and any(row["samples_per_s"]["median"] for row in rows):
        sentences, command = [found["verdict"]["text"]], found["verdict"]["command"]
    return Document(
        title, subtitle, sentences, [], [figures], sections, values, [appendix], command=command
    )


def _row(group: Group) -> GroupRow:
    summaries = [run.summary for run in group.runs]
    phases = [summary.get("phases") or {} for summary in summaries]
    return {
        "name": group.name,
        "runs": len(group.runs),
        "completed": sum(run.status == schema.COMPLETED for run in group.runs),
        "samples_per_s": rate_interval(group.throughput()),
        "step_s": known_median(
            sum(phase["mean_s"] for phase in each.values()) or None for each in phases
        ),
        "data_share": known_median(each["data"]["share"] if each else None for each in phases),
        "peak_memory_bytes": known_median(each.get("peak_memory_bytes") for each in summaries),
        "test_accuracy": known_median(each.get("test_accuracy") for each in summaries),
    }


def _sentence(rows: Sequence[GroupRow]) -> str:
    """Return the throughput of a setting that there is nothing to compare with."""
    row = next((row for row in rows if row["samples_per_s"]["median"] is not None), None)
    if row is None:
        return "Nothing to compare: no completed run has a throughput."
    rate = row["samples_per_s"]
    sure = "" if rate["low"] is None else f" (95 %: {rate['low']:,.0f} to {rate['high']:,.0f})"
    return f"{row['name']}: {rate['median']:,.0f} samples/s{sure}."
