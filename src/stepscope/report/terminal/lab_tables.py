"""The findings of labs as tables, text charts and chart files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.records.types import (
    LabAnswer,
    LabFigures,
    LabPlot,
    LabValue,
    MemoryByPhase,
    MemoryLabAnswer,
    SecondEpochAnswer,
    SecondEpochRun,
)
from stepscope.report.charts.chart import Chart, ChartMark, save
from stepscope.report.progress_bar import workers_warning
from stepscope.report.terminal.run_tables import about_forecast, bill_table
from stepscope.report.terminal.table_style import house_table, print_table, say
from stepscope.report.terminal.text_chart import print_graph
from stepscope.report.terminal.workers_table import workers_chart
from stepscope.units import format_bytes, format_duration, format_known, format_share


def print_labs(console: Console, labs: Mapping[str, str]) -> None:
    """List the labs, one per line."""
    width = max(map(len, labs))
    say(console, *(f"{name:{width}}  {about}" for name, about in labs.items()))


def print_finding(console: Console, answer: MemoryLabAnswer | SecondEpochAnswer) -> None:
    """Print the tables of a lab without a sheet, then its answer."""
    if answer["lab"] == "memory":
        _print_memory(console, answer)
    else:
        _print_second_epoch(console, answer)
    say(console, answer["answer"])


def _print_memory(console: Console, finding: MemoryLabAnswer) -> None:
    spec, bill = finding["spec"], finding["bill"]
    say(
        console,
        f"{spec['model']} on {spec['data']}, batch {spec['batch_size']:,}, {spec['optimizer']}, "
        f"{spec['workers']} workers",
        style="bold",
    )
    print_table(console, bill_table(bill))
    say(console, about_forecast(bill))
    print_table(console, _phases(finding["phases"]))
    largest = finding["peak_phase"] or "? (this system keeps no high-water mark)"
    say(console, f"the process was largest in: {largest}")
    say(console, f"the tensors of a step are most in: {bill['peak_phase']} (counted)")
    say(console, "\nwhat is there at the peak of a step, when it goes, and by what", style="bold")
    for kind in finding["freed"]:
        size = f"{kind['kind']}, {format_bytes(kind['bytes'])} (counted)"
        say(console, f"- {size}: {kind['when']}; by {kind['by']}")
    table = house_table("tried", "peak saved", "spread", "step time", "how", left=(0, 4))
    for remedy in finding["remedies"]:
        if remedy["applies"]:
            saved = format_known(remedy["saved_bytes"], format_bytes)
            slower = f"x {remedy['step_time_ratio']:.2f}"
            table.add_row(
                remedy["name"],
                saved if remedy["differs"] else "no difference",
                format_bytes(remedy["spread_bytes"]),
                slower if remedy["step_time_differs"] else "about the same",
                remedy["how"],
            )
    print_table(console, table)
    for remedy in finding["remedies"]:
        if not remedy["applies"]:
            say(console, f"not tried: {remedy['name']}: {remedy['reason']}")


def _phases(phases: list[MemoryByPhase]) -> Table:
    table = house_table(
        "measured in", "first step, at most", "later, at most", "at its end", "in use", "change"
    )
    for phase in phases:
        change = phase["change_bytes"] or 0
        table.add_row(
            phase["phase"],
            _size(phase["first_step_peak_bytes"]),
            _size(phase["peak_bytes"]),
            _size(phase["end_bytes"]),
            _size(phase["in_use_bytes"]),
            f"{'+' if change > 0 else ''}{_size(phase['change_bytes'])}",
        )
    return table


def _print_second_epoch(console: Console, finding: SecondEpochAnswer) -> None:
    forecast = finding["forecast"]
    limit = format_bytes(finding["limit_bytes"])
    say(console, f"limit: {limit} ({finding['limit_from']})", style="bold")
    if forecast["total_bytes"] is not None:
        say(
            console,
            f"forecast: {_size(forecast['without_workers_bytes'])} without workers, "
            f"{_size(forecast['total_bytes'])} with {forecast['workers']}",
        )
    ahead = finding["forewarned"]
    midway = f"a limit midway between them, {format_bytes(ahead['limit_bytes'])}"
    say(console, f"{midway}: {workers_warning(ahead) or 'no warning'}")
    say(console, f"under the limit of this run: {workers_warning(forecast) or 'no warning'}")
    print_table(console, _runs(finding))
    for fallback in finding["with_limit"]["fallbacks"]:
        say(
            console,
            f"epoch {fallback['epoch']}, {fallback['split']}, batch {fallback['batch']}: "
            f"from {fallback['from']} workers to {fallback['to']}: {fallback['reason']}",
        )


def _runs(finding: SecondEpochAnswer) -> Table:
    table = house_table("", "without a limit", "under the limit")
    both = (finding["without_limit"], finding["with_limit"])

    def row(name: str, show: Callable[[SecondEpochRun], str]) -> None:
        table.add_row(name, *map(show, both))

    row("status", lambda run: run["status"])
    row("peak", lambda run: _size(run["peak_memory_bytes"]))
    row("time", lambda run: format_duration(run["wall_s"]) if run["wall_s"] else "?")
    row("steps", lambda run: f"{run['steps']:,}")
    for epoch in both[0]["samples_by_epoch"]:
        samples = [f"{run['samples_by_epoch'].get(epoch, 0):,}" for run in both]
        table.add_row(f"samples in epoch {epoch}", *samples)
    row("times with fewer workers", lambda run: str(len(run["fallbacks"])))
    table.add_row("losses", "", "the same" if finding["same_losses"] else "not the same")
    table.add_row("workers ended by the guard", "", str(finding["workers_ended_by_guard"]))
    table.add_row("workers ended by hand", "", str(finding["workers_ended_by_hand"]))
    return table


def _size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else format_bytes(size_bytes)


# --- Findings of a lab's sheet


_FORMS = ("svg", "png")

LabRow = Mapping[str, LabValue]


def charts_of(finding: LabFigures, plots: Sequence[LabPlot]) -> dict[str, Chart]:
    """Return the plots of a sheet with the figures of a finding; empty ones are left out."""
    charts = {plot["name"]: _chart(finding, plot) for plot in plots}
    return {name: chart for name, chart in charts.items() if chart is not None and chart.marks}


def save_charts(charts: Mapping[str, Chart], folder: Path) -> list[str]:
    """Draw every chart as a file for pages and one for papers; return the files."""
    return [
        str(save(chart, folder / f"{name}.{form}"))
        for name, chart in charts.items()
        for form in _FORMS
    ]


def print_sheet(
    console: Console,
    finding: LabAnswer,
    columns: Mapping[str, str],
    charts: Mapping[str, Chart],
) -> None:
    """Print the table that a sheet defines, its plots, missing figures, and the answer."""
    table = house_table(*columns.values())
    for row in finding["rows"]:
        table.add_row(*(Text(_show(name, row)) for name in columns))
    print_table(console, table)
    for chart in charts.values():
        print_graph(console, chart)
        console.print()
    for row in finding["rows"]:
        if row.get("status", "completed") != "completed":
            say(console, f"{next(iter(row.values()))}: {row['status']}")
    say(
        console,
        *(f"missing: {each['name']}: {each['reason']}" for each in finding["missing"]),
        *(f"of the sheet only: {name} {value}" for name, value in finding["picked"].items()),
        *(f"other than in the sheet: {name} {value}" for name, value in finding["changed"].items()),
        *([f"note: {finding['note']}"] if finding["note"] else []),
        *(f"plot: {path}" for path in finding["plots"]),
        f"published: {finding['published']}",
        f"lab: {finding['path']}",
    )
    say(console, f"\n{finding['question']}", style="bold")
    say(console, finding["answer"])


def _chart(finding: LabFigures, plot: LabPlot) -> Chart | None:
    if "graph_of" in plot:  # the only graph that a lab takes from an answer
        found = finding.get("workers")
        return None if found is None else replace(workers_chart(found), subtitle=finding["subject"])
    rows = finding["curves"] if plot.get("rows") == "curves" else finding["rows"]
    return Chart(
        title=plot["title"],
        kind=plot["kind"],
        x=plot["x_title"],
        y=plot["y_title"],
        marks=[mark for row in rows for mark in _marks(row, plot)],
        subtitle=finding["subject"],
    )


def _marks(row: LabRow, plot: LabPlot) -> Iterator[ChartMark]:
    over = _number(row, plot["y_over"]) if "y_over" in plot else 1
    times = plot.get("y_times", 1) / (over or 1)
    x = row[plot["x"]]
    if plot["kind"] in ("bars", "stacked") or not isinstance(x, int | float):
        x = str(x)  # bars need words on x
    panel = str(row[plot["panel"]]) if "panel" in plot else ""
    for part in plot.get("parts", ()):
        if (length := _number(row, part)) is not None:
            yield ChartMark(x, length * times, part.removesuffix("_s"), panel)
    if "parts" in plot or (y := _number(row, plot["y"])) is None:
        return
    low, high = (_number(row, f"{plot['y']}_{end}") for end in ("low", "high"))
    yield ChartMark(
        x,
        y * times,
        series=str(row[plot["series"]]) if "series" in plot else "",
        panel=panel,
        low=None if low is None else low * times,
        high=None if high is None else high * times,
        chosen=bool(row.get("chosen")),
    )


def _number(row: LabRow, name: str) -> float | None:
    value = row.get(name)
    return value if isinstance(value, int | float) else None


def _show(name: str, row: LabRow) -> str:
    """Return a figure as text: `?` if it is unknown, empty if it does not apply."""
    if name not in row:
        return ""
    value = row[name]
    if isinstance(value, list):
        return " ".join(_figure(name, each) for each in value)
    shown = _figure(name, value)
    # Only rates, which are compared, have intervals: more would make the table unreadable.
    low, high = _number(row, f"{name}_low"), _number(row, f"{name}_high")
    if low is None or high is None or not name.endswith("_per_s"):
        return shown
    return f"{shown} ({_figure(name, low)} to {_figure(name, high)})"


def _figure(name: str, value: bool | float | str | None) -> str:
    if value is None:
        return "?"
    if isinstance(value, str):
        return value
    if name.endswith("_per_s"):
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    if name.endswith("_s"):
        return format_duration(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith(("accuracy", "accuracies")):
        return format_share(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
