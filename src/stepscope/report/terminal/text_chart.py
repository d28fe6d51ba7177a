"""Charts as text, for a terminal of any width and encoding.

points, bars, waterfall   a line for each value: its interval `├──●──┤`, or a bar without one
stacked, rows             a bar for each x, with a letter for each part
lines, areas, bands       a row of steps for each series, from its first value to its last
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.palette import colours_of

_LEAST_WIDTH = 10
_MOST_WIDTH = 72  # longer bars are no easier to read


@dataclass(frozen=True)
class _Letters:
    """The characters of bars; each part of a stack has its own, for display without colour."""

    bar: str
    low: str
    line: str
    middle: str
    high: str
    parts: str
    steps: str
    chosen: str
    to: str


_UNICODE = _Letters("█", "├", "─", "●", "┤", "█▓▒░▚▞", "▁▂▃▄▅▆▇█", "← chosen", "→")
_ASCII = _Letters("=", "|", "-", "o", "|", "#=+:~.", "_.-=+*#@", "<- chosen", "to")


def print_graph(console: Console, chart: Chart) -> None:
    """Print a chart: its title, its lines, and a legend."""
    letters = _ASCII if console.options.ascii_only else _UNICODE
    console.print(Text(f"{chart.title}: {chart.y} by {chart.x}", style="bold"), soft_wrap=True)
    draw = _DRAW.get(chart.kind, _intervals)
    for line in draw(chart, letters, console.width):
        console.print(line, soft_wrap=True)


def _intervals(chart: Chart, letters: _Letters, width: int) -> Iterator[Text]:
    labels = _aligned([_label(mark) for mark in chart.marks], width // 2)
    values = _aligned([_number(mark.y) for mark in chart.marks], width, right=True)
    most = max((mark.y if mark.high is None else mark.high for mark in chart.marks), default=0.0)
    room = width - len(f"{labels[0]} {values[0]}  ") if chart.marks else width
    room -= len(letters.chosen) + 1 if any(mark.chosen for mark in chart.marks) else 0
    scale = _Scale(most, room)
    colours = colours_of(chart.series())
    for mark, label, value in zip(chart.marks, labels, values, strict=True):
        line = Text(f"{label} {value}  ")
        line.append(_bar(mark, scale, letters), style=colours[mark.series])
        if mark.chosen:
            line.append(f" {letters.chosen}", style="bold")
        yield line


def _bar(mark: ChartMark, scale: _Scale, letters: _Letters) -> str:
    at = scale.place(mark.y)
    if mark.low is None or mark.high is None:
        return letters.bar * at
    low, high = min(scale.place(mark.low), at), max(scale.place(mark.high), at)
    drawn = [" "] * low + [letters.line] * (high - low + 1)
    drawn[low], drawn[high] = letters.low, letters.high
    drawn[at] = letters.middle
    return "".join(drawn)


def _stacked(chart: Chart, letters: _Letters, width: int) -> Iterator[Text]:
    parts = chart.series()
    colours = colours_of(parts)
    bars: dict[str, list[ChartMark]] = {}
    for mark in chart.marks:
        bars.setdefault(_place(mark), []).append(mark)
    totals = [sum(mark.y for mark in marks) for marks in bars.values()]
    labels = _aligned(list(bars), width // 2)
    values = _aligned([_number(total) for total in totals], width, right=True)
    room = width - len(f"{labels[0]} {values[0]}  ") if bars else width
    scale = _Scale(max(totals, default=0.0), room)
    for marks, label, value in zip(bars.values(), labels, values, strict=True):
        line = Text(f"{label} {value}  ")
        reached = 0.0
        for mark in marks:
            # Edges are rounded, not parts: rounding errors must not add up.
            begin, reached = scale.place(reached), reached + mark.y
            letter = letters.parts[parts.index(mark.series) % len(letters.parts)]
            line.append(letter * (scale.place(reached) - begin), style=colours[mark.series])
        yield line
    legend = Text()
    for number, part in enumerate(parts):
        legend.append(letters.parts[number % len(letters.parts)], style=colours[part])
        legend.append(f" {part}   " if part != parts[-1] else f" {part}")
    yield legend


def _lines(chart: Chart, letters: _Letters, width: int) -> Iterator[Text]:
    groups: dict[str, list[ChartMark]] = {}
    for mark in chart.marks:
        groups.setdefault(_name(chart, mark), []).append(mark)
    least = min((mark.y for mark in chart.marks), default=0.0)
    most = max((mark.y for mark in chart.marks), default=0.0)
    labels = _aligned(list(groups), width // 2)
    colours = colours_of(chart.series())
    for marks, label in zip(groups.values(), labels, strict=True):
        line = Text(f"{label}  ")
        steps = "".join(_step(mark.y, least, most, letters) for mark in _some(marks, width // 4))
        line.append(steps, style=colours[marks[0].series])
        first, last = _number(marks[0].y), _number(marks[-1].y)
        line.append(f"  {first} {letters.to} {last}" if len(marks) > 1 else f"  {last}")
        yield line


@dataclass(frozen=True)
class _Scale:
    """A scale from 0 to the maximum, over the available columns."""

    most: float
    room: int

    def place(self, value: float) -> int:
        columns = max(_LEAST_WIDTH, min(self.room - 1, _MOST_WIDTH))
        return 0 if self.most <= 0 else round(max(0.0, value) / self.most * (columns - 1))


def _some(marks: list[ChartMark], most: int) -> list[ChartMark]:
    """Return an even selection of values if there are too many, with the first and the last."""
    most = max(2, most)
    if len(marks) <= most:
        return marks
    return [marks[round(number * (len(marks) - 1) / (most - 1))] for number in range(most)]


def _step(value: float, least: float, most: float, letters: _Letters) -> str:
    share = 0.0 if most <= least else (value - least) / (most - least)
    return letters.steps[min(int(share * len(letters.steps)), len(letters.steps) - 1)]


def _place(mark: ChartMark) -> str:
    """Return the label of a mark on the x axis."""
    where = mark.x if isinstance(mark.x, str) else f"{mark.x:g}"
    return ", ".join(part for part in (where, mark.panel) if part)


def _label(mark: ChartMark) -> str:
    return ", ".join(part for part in (_place(mark), mark.series) if part)


def _name(chart: Chart, mark: ChartMark) -> str:
    return ", ".join(part for part in (mark.panel, mark.series) if part) or chart.y


def _aligned(texts: list[str], most: int, *, right: bool = False) -> list[str]:
    flat = [" ".join(text.split()) for text in texts]
    width = min(max(map(len, flat), default=0), most)
    return [f"{text[:width]:{'>' if right else '<'}{width}}" for text in flat]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


_DRAW = {
    **dict.fromkeys(("stacked", "rows"), _stacked),
    **dict.fromkeys(("lines", "areas", "bands"), _lines),
}
