"""The style that all terminal tables share, and intervals that can be drawn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from stepscope.report.charts.chart import ChartMark
from stepscope.stats import Interval


def house_table(*columns: str) -> Table:
    """Return an empty table: names on the left, figures on the right, a ruled header."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table at its full width: a long line is better than half a number."""
    table.width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    console.print(table, crop=False)


def printable(text: str) -> str:
    """Escape control characters, which any recorded name may contain."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


# --- Intervals. Those of two runs on a busy machine can reach from 0 to a thousandfold.


_MOST_TIMES = 4  # times the largest value; wider ones would flatten the chart


def with_interval(
    x: float | str, found: Interval, series: str = "", times: float = 1, *, chosen: bool = False
) -> ChartMark:
    """Return a mark with a median and its interval."""
    low, high = (None if end is None else end * times for end in (found.low, found.high))
    return ChartMark(x, found.median * times, series, low=low, high=high, chosen=chosen)


def drawable(marks: Iterable[ChartMark]) -> tuple[list[ChartMark], str]:
    """Return the marks without intervals that would flatten a chart, and a note on them."""
    given = list(marks)
    most = max((mark.y for mark in given), default=0.0) * _MOST_TIMES
    kept = [
        replace(mark, low=None, high=None) if mark.high is not None and mark.high > most else mark
        for mark in given
    ]
    left_out = sum(ours is not theirs for ours, theirs in zip(kept, given, strict=True))
    if not left_out:
        return kept, ""
    return (
        kept,
        f"{left_out} of {len(given)} intervals are too wide to be drawn: more rounds would tell",
    )
