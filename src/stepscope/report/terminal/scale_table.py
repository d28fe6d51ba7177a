"""The answer of `stepscope scale` as tables: measured scaling, and the prediction separately."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from stepscope.report.charts.chart import Chart, ChartMark, drawable
from stepscope.report.terminal.table_style import house_table, print_table, say
from stepscope.report.terminal.text_chart import print_graph
from stepscope.units import (
    format_bandwidth,
    format_duration,
    format_known,
    format_range,
    format_share,
)

Found = Mapping[str, Any]
Row = Mapping[str, Any]

_IDEAL = "ideal"


def scale_chart(found: Found) -> Chart:
    """Return the chart of speed-up by processes; the prediction has its own panel."""
    measured, predicted = found["measured"], found["predicted"]
    panels = {"measured": measured, "predicted": predicted} if predicted else {"": measured}
    base = _base(measured)
    marks, note = drawable(
        mark for panel, rows in panels.items() for mark in _marks(rows, base, panel)
    )
    title = "Speed-up by processes"
    return Chart(title, "points", "processes", f"times as fast as {base}", marks, note)


def print_scale(console: Console, found: Found) -> None:
    """Print the measured table, the predicted one, the chart and the answer."""
    print_table(console, _measured_table(found["measured"]))
    if found["predicted"]:
        network = found["assumed"]
        latency_s = network["latency_s"]
        latency = f"latency {format_duration(latency_s)}" if latency_s else "no latency"
        over = f"{format_bandwidth(network['bandwidth_bytes_per_s'])}, {latency}"
        say(console, f"Predicted, not measured; over {over}:", style="bold")
        print_table(console, _predicted_table(found["predicted"]))
    print_graph(console, scale_chart(found))
    console.print()
    say(console, *_words(found))
    say(console, found["answer"], style="bold")


def _base(measured: list[Row]) -> int:
    return min(int(row["processes"]) for row in measured)


def _marks(rows: list[Row], base: int, panel: str) -> Iterator[ChartMark]:
    for row in rows:
        if row["speedup"] is not None:
            low, high = row.get("low"), row.get("high")
            yield ChartMark(row["processes"], row["speedup"], row["mode"], panel, low, high)
    for count in sorted({row["processes"] for row in rows}):
        yield ChartMark(count, count / base, _IDEAL, panel)


def _measured_table(rows: list[Row]) -> Table:
    table = house_table(
        "measured", "processes", "batch", "samples/s", "speed-up", "95 % interval", "efficiency",
        "communication", "rounds",
    )  # fmt: skip
    base = _base(rows)
    for row in rows:
        table.add_row(
            row["mode"],
            str(row["processes"]),
            f"{row['batch_size']:,}",
            format_known(row["samples_per_s"], "{:,.0f}".format),
            format_known(row["speedup"], "{:.2f}".format),
            _interval(row, base),
            format_known(row["efficiency"], format_share),
            "" if row["communication_s"] is None else format_duration(row["communication_s"]),
            str(row["rounds"]),
        )
    return table


def _predicted_table(rows: list[Row]) -> Table:
    table = house_table(
        "predicted", "processes", "batch", "samples/s", "speed-up", "efficiency", "step",
        "exchange", "not hidden",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row["mode"],
            str(row["processes"]),
            f"{row['batch_size']:,}",
            f"{row['samples_per_s']:,.0f}",
            f"{row['speedup']:.2f}",
            format_share(row["efficiency"]),
            *(format_duration(row[name]) for name in ("step_s", "exchange_s", "exposed_s")),
        )
    return table


def _interval(row: Row, base: int) -> str:
    if row["speedup"] is None or row["processes"] == base:  # which is 1 by definition
        return ""
    return format_range(row["low"], row["high"], "{:.2f}".format, unknown="one round: ?")


def _words(found: Found) -> Iterator[str]:
    for row in found["measured"]:
        if row["reason"] is not None:
            yield f"{row['mode']}, {row['processes']} processes: {row['reason']}"
    if found["assumed"] is not None:
        yield f"assumed: {found['assumed']['how']}"
    for note in found["notes"]:
        yield f"note: {note}"
    yield f"trials: {found['path']}"
