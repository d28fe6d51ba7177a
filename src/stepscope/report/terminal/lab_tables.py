"""The findings of labs as tables, text charts and chart files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from stepscope.records.types import (
    LabAnswer,
    LabFigures,
    LabPlot,
    LabValue,
    MemoryLabAnswer,
    SecondEpochAnswer,
)
from stepscope.report.charts.chart import Chart, ChartMark, save
from stepscope.report.progress_bar import workers_warning
from stepscope.report.terminal.run_tables import about_forecast, known_size, print_bill
from stepscope.report.terminal.table_style import print_prose, print_rows, say
from stepscope.report.terminal.text_chart import print_graph
from stepscope.report.terminal.workers_table import workers_chart
from stepscope.units import (
    duration_format,
    format_bytes,
    format_count,
    format_duration,
    format_known,
    format_share,
)


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
    print_prose(console, answer["answer"])


def _print_memory(console: Console, finding: MemoryLabAnswer) -> None:
    spec, bill = finding["spec"], finding["bill"]
    say(
        console,
        f"{spec['model']} on {spec['data']}, batch {spec['batch_size']:,}, {spec['optimizer']}, "
        f"{format_count(spec['workers'], 'worker')}",
        style="bold",
    )
    print_bill(console, bill)
    say(console, about_forecast(bill))
    rows = []
    for phase in finding["phases"]:
        change = "+" if (phase["change_bytes"] or 0) > 0 else ""
        sizes = map(known_size, (phase["peak_bytes"], phase["end_bytes"], phase["in_use_bytes"]))
        rows.append([phase["phase"], *sizes, change + known_size(phase["change_bytes"])])
    print_rows(console, ("phase", "peak", "at the end", "in use", "change"), rows)
    rows = [
        [kind["kind"], format_bytes(kind["bytes"]), kind["when"], kind["by"]]
        for kind in finding["freed"]
    ]
    print_rows(console, ("at the peak", "size", "freed", "by"), rows, left=(0, 2, 3))
    rows = [
        [
            remedy["name"],
            format_known(remedy["saved_bytes"], format_bytes) if remedy["differs"] else "not shown",
            f"x {remedy['step_time_ratio']:.2f}" if remedy["step_time_differs"] else "not shown",
            remedy["how"],
        ]
        for remedy in finding["remedies"]
        if remedy["applies"]
    ]
    print_rows(console, ("remedy", "saved", "step time", "how"), rows, left=(0, 3))
    for remedy in finding["remedies"]:
        if not remedy["applies"]:
            print_prose(console, f"Not tried, {remedy['name']}: {remedy['reason']}")


def _print_second_epoch(console: Console, finding: SecondEpochAnswer) -> None:
    forecast, ahead = finding["forecast"], finding["forewarned"]
    limit = format_bytes(finding["limit_bytes"])
    say(console, f"Limit: {limit}, {finding['limit_from']}", style="bold")
    say(
        console,
        f"Forecast: {known_size(forecast['without_workers_bytes'])} without workers, "
        f"{known_size(forecast['total_bytes'])} with {forecast['workers']}",
        f"With a limit of {format_bytes(ahead['limit_bytes'])}: "
        f"{workers_warning(ahead) or 'no warning'}",
        f"With this limit: {workers_warning(forecast) or 'no warning'}",
    )
    both = (finding["without_limit"], finding["with_limit"])
    rows = [
        ["status", *(run["status"] for run in both)],
        ["peak memory", *(known_size(run["peak_memory_bytes"]) for run in both)],
        ["time", *(format_known(run["wall_s"], format_duration) for run in both)],
        ["steps", *(f"{run['steps']:,}" for run in both)],
    ]
    for epoch in both[0]["samples_by_epoch"]:
        samples = (f"{run['samples_by_epoch'].get(epoch, 0):,}" for run in both)
        rows.append([f"samples in epoch {epoch}", *samples])
    rows += [
        ["worker fallbacks", *(str(len(run["fallbacks"])) for run in both)],
        ["losses", "", "identical" if finding["same_losses"] else "different"],
        ["workers ended by the guard", "", str(finding["workers_ended_by_guard"])],
        ["workers killed by the lab", "", str(finding["workers_ended_by_hand"])],
    ]
    print_rows(console, ("", "without a limit", "with the limit"), rows)
    for fallback in finding["with_limit"]["fallbacks"]:
        print_prose(
            console,
            f"Epoch {fallback['epoch']}, {fallback['split']}, batch {fallback['batch']}: "
            f"from {fallback['from']} to {fallback['to']} workers: {fallback['reason']}",
        )


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
    """Print the table that a sheet defines, its plots, what is missing, and the answer."""
    rows = finding["rows"]
    shown = [_formatter(name, rows) for name in columns]
    print_rows(console, [*columns.values()], ([show(row) for show in shown] for row in rows))
    for chart in charts.values():
        print_graph(console, chart)
        console.print()
    flags = {"Selected by flags": finding["picked"], "Changed by flags": finding["changed"]}
    for line in (
        *(
            f"{next(iter(row.values()))}: {row['status']}"
            for row in rows
            if row.get("status", "completed") != "completed"
        ),
        *(f"Missing {each['name']}: {each['reason']}" for each in finding["missing"]),
        *(
            f"{effect}: {', '.join(f'{name} {value}' for name, value in those.items())}."
            for effect, those in flags.items()
            if those
        ),
        *([f"Note: {finding['note']}."] if finding["note"] else []),
        f"Published: {finding['published']}.",
    ):
        print_prose(console, line)
    say(console, f"{'Record and plots' if finding['plots'] else 'Record'}: {finding['path']}", "")
    say(console, finding["question"], style="bold")
    print_prose(console, finding["answer"])


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


def _formatter(name: str, rows: Sequence[LabRow]) -> Callable[[LabRow], str]:
    """Return how to print a column: `?` if a figure is unknown, empty if it does not apply."""
    form = _form(name, [value for row in rows if (value := _number(row, name)) is not None])

    def show(row: LabRow) -> str:
        if name not in row:
            return ""
        value = row[name]
        if isinstance(value, list):
            return " ".join(format_known(each, form) for each in value)
        if value is None or isinstance(value, str):
            return "?" if value is None else value
        # Only rates, which are compared, have intervals: more would make the table unreadable.
        low, high = _number(row, f"{name}_low"), _number(row, f"{name}_high")
        if low is None or high is None or not name.endswith("_per_s"):
            return form(value)
        return f"{form(value)} ({form(low)} to {form(high)})"

    return show


def _form(name: str, column: Sequence[float]) -> Callable[[float], str]:
    if name.endswith("_per_s"):
        return lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    if name.endswith("_s"):
        return duration_format(column)
    if name.endswith("_bytes"):
        return format_bytes
    if name.endswith(("accuracy", "accuracies")):
        return format_share
    return lambda value: f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
