"""The answer of `stepscope scale` as tables: measured scaling, and the prediction separately."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from stepscope.records.types import MeasuredScaling, PredictedScaling, ScalingAnswer
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.terminal.table_style import print_prose, print_rows, say
from stepscope.report.terminal.text_chart import print_graph
from stepscope.units import (
    duration_format,
    format_bandwidth,
    format_duration,
    format_known,
    format_range,
    format_share,
)

_IDEAL = "ideal"


def scale_chart(found: ScalingAnswer) -> Chart:
    """Return the chart of speed-up by processes; the prediction has its own panel."""
    measured, predicted = found["measured"], found["predicted"]
    base = _base(measured)
    panel = "measured" if predicted else ""
    marks = [
        ChartMark(row["processes"], row["speedup"], row["mode"], panel, row["low"], row["high"])
        for row in measured
        if row["speedup"] is not None
    ]
    marks += _ideal({row["processes"] for row in measured}, base, panel)
    marks += [
        ChartMark(row["processes"], row["speedup"], row["mode"], "predicted") for row in predicted
    ]
    marks += _ideal({row["processes"] for row in predicted}, base, "predicted")
    title = "Speed-up by processes"
    return Chart(title, "points", "processes", f"times as fast as {base}", marks)


def print_scale(console: Console, found: ScalingAnswer) -> None:
    """Print the measured table, the predicted one, the chart and the answer."""
    _print_measured(console, found["measured"])
    if found["predicted"] and (network := found["assumed"]):
        latency_s = network["latency_s"]
        latency = f"latency {format_duration(latency_s)}" if latency_s else "no latency"
        over = f"{format_bandwidth(network['bandwidth_bytes_per_s'])}, {latency}"
        say(console, f"Predicted, not measured; over {over}:", style="bold")
        _print_predicted(console, found["predicted"])
    print_graph(console, scale_chart(found))
    console.print()
    for line in _words(found):
        print_prose(console, line)
    say(console, f"Trials: {found['path']}", "")
    print_prose(console, found["answer"])


def _base(measured: list[MeasuredScaling]) -> int:
    return min(row["processes"] for row in measured)


def _ideal(processes: set[int], base: int, panel: str) -> list[ChartMark]:
    return [ChartMark(count, count / base, _IDEAL, panel) for count in sorted(processes)]


def _print_measured(console: Console, rows: list[MeasuredScaling]) -> None:
    base = _base(rows)
    duration = duration_format([s for row in rows if (s := row["communication_s"]) is not None])
    cells = [
        [
            *_setting(row),
            format_known(row["samples_per_s"], "{:,.0f}".format),
            format_known(row["speedup"], "{:.2f}".format) + _interval(row, base),
            format_known(row["efficiency"], format_share),
            "" if row["communication_s"] is None else duration(row["communication_s"]),
        ]
        for row in rows
    ]
    columns = ("samples/s", "speed-up, 95 %", "efficiency", "allreduce")
    print_rows(console, (*_SETTING, *columns), cells)


def _print_predicted(console: Console, rows: list[PredictedScaling]) -> None:
    step = duration_format([row["step_s"] for row in rows])
    allreduce = duration_format([row["allreduce_s"] for row in rows])
    cells = [
        [
            *_setting(row),
            f"{row['samples_per_s']:,.0f}",
            f"{row['speedup']:.2f}",
            format_share(row["efficiency"]),
            step(row["step_s"]),
            allreduce(row["allreduce_s"]),
        ]
        for row in rows
    ]
    columns = ("samples/s", "speed-up", "efficiency", "step", "allreduce")
    print_rows(console, (*_SETTING, *columns), cells)


_SETTING = ("mode", "processes", "batch")


def _setting(row: MeasuredScaling | PredictedScaling) -> list[str]:
    return [row["mode"], str(row["processes"]), f"{row['batch_size']:,}"]


def _interval(row: MeasuredScaling, base: int) -> str:
    if row["low"] is None or row["processes"] == base:  # too few rounds, or 1 by definition
        return ""
    return f" ({format_range(row['low'], row['high'], '{:.2f}'.format)})"


def _words(found: ScalingAnswer) -> Iterator[str]:
    for row in found["measured"]:
        if row["reason"] is not None:
            yield f"{row['mode']}, {row['processes']} processes: {row['reason']}"
    if found["assumed"] is not None:
        yield f"Assumed: {found['assumed']['how']}."
    for note in found["notes"]:
        yield f"Note: {note}."
