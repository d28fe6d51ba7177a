"""How the finding of a lab's sheet looks: its table, its plots as text and as files, its answer.

The sheet says what is shown. What a figure is, its name tells: `_s` is a time, `_bytes` a size,
`accuracy` a share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.report.charts import Chart, Mark, save
from stepscope.report.graph import print_graph
from stepscope.report.tables import house_table, print_table
from stepscope.report.workers import workers_chart
from stepscope.units import format_bytes, format_duration, format_share

_FORMS = ("svg", "png")

Row = Mapping[str, Any]

# Figures of a finding that have a graph wherever they are shown.
_GRAPHS: Mapping[str, Callable[[Row], Chart]] = {"workers": workers_chart}


def charts_of(finding: Mapping[str, Any], plots: Sequence[Row]) -> dict[str, Chart]:
    """Describe the plots of a sheet with the figures of a finding; one without any is left out."""
    charts = {plot["name"]: _chart(finding, plot) for plot in plots if _has_figures(finding, plot)}
    return {name: chart for name, chart in charts.items() if chart.marks}


def save_charts(charts: Mapping[str, Chart], folder: Path) -> list[str]:
    """Draw every chart in the forms for a page and for a paper; return the files."""
    return [
        str(save(chart, folder / f"{name}.{form}"))
        for name, chart in charts.items()
        for form in _FORMS
    ]


def print_sheet(
    console: Console,
    finding: Mapping[str, Any],
    columns: Mapping[str, str],
    charts: Mapping[str, Chart],
) -> None:
    """Print the table that a sheet asks for, its plots, what is missing, and the answer."""
    table = house_table(*columns.values())
    for row in finding["rows"]:
        table.add_row(*(Text(_show(name, row)) for name in columns))
    print_table(console, table)
    for chart in charts.values():
        print_graph(console, chart)
        console.print()
    for row in finding["rows"]:
        if row.get("status", "completed") != "completed":
            _say(console, f"{next(iter(row.values()))}: {row['status']}")
    for each in finding["missing"]:
        _say(console, f"missing: {each['name']}: {each['reason']}")
    for name, value in finding["picked"].items():
        _say(console, f"of the sheet only: {name} {value}")
    for name, value in finding["changed"].items():
        _say(console, f"other than in the sheet: {name} {value}")
    if finding["note"]:
        _say(console, f"note: {finding['note']}")
    for path in finding["plots"]:
        _say(console, f"plot: {path}")
    _say(console, f"published: {finding['published']}")
    _say(console, f"lab: {finding['path']}")
    _say(console, f"\n{finding['question']}", style="bold")
    _say(console, finding["answer"])


def _has_figures(finding: Mapping[str, Any], plot: Row) -> bool:
    return plot.get("graph_of", "rows") in finding


def _chart(finding: Mapping[str, Any], plot: Row) -> Chart:
    if "graph_of" in plot:
        name = plot["graph_of"]
        return replace(_GRAPHS[name](finding[name]), subtitle=finding["subject"])
    marks = [mark for row in finding[plot.get("rows", "rows")] for mark in _marks(row, plot)]
    return Chart(
        title=plot["title"],
        kind=plot["kind"],
        x=plot["x_title"],
        y=plot["y_title"],
        marks=marks,
        subtitle=finding["subject"],
    )


def _marks(row: Row, plot: Row) -> list[Mark]:
    times = plot.get("y_times", 1)
    if "y_over" in plot:
        times /= float(row[plot["y_over"]])
    # Bars stand side by side, so what they stand on is a word even where it is a number.
    x = str(row[plot["x"]]) if plot["kind"] in ("bars", "stacked") else row[plot["x"]]
    panel = str(row[plot["panel"]]) if "panel" in plot else ""
    if "parts" in plot:
        return [
            Mark(x, row[part] * times, part.removesuffix("_s"), panel)
            for part in plot["parts"]
            if row.get(part) is not None
        ]
    y = row.get(plot["y"])
    if y is None:
        return []
    low, high = (row.get(f"{plot['y']}_{end}") for end in ("low", "high"))
    return [
        Mark(
            x,
            y * times,
            series=str(row[plot["series"]]) if "series" in plot else "",
            panel=panel,
            low=None if low is None else low * times,
            high=None if high is None else high * times,
            chosen=bool(row.get("chosen")),
        )
    ]


def _show(name: str, row: Row) -> str:
    """Show a figure: `?` is one that could not be had, and one that does not apply is left out."""
    if name not in row:
        return ""
    value = row[name]
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if isinstance(value, list):
        return " ".join(_figure(name, each) for each in value)
    shown = _figure(name, value)
    # Intervals of every figure would make a table that nobody reads: rates are what is compared.
    if low is None or high is None or not name.endswith("_per_s"):
        return shown
    return f"{shown} ({_figure(name, low)} to {_figure(name, high)})"


def _figure(name: str, value: Any) -> str:
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


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)
