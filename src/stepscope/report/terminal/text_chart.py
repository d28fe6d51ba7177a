"""Charts as text, for a terminal of any width and encoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from stepscope.report.charts.chart import Chart, ChartMark, evenly
from stepscope.report.palette import colours_of

_LEAST_WIDTH = 10
_MOST_WIDTH = 72  # longer bars are no easier to read


@dataclass(frozen=True)
class _Letters:
    """The characters of bars; each part of a stack has its own, for display without colour."""

    bar: str
    interval: str
    parts: str
    steps: str
    chosen: str
    to: str


_UNICODE = _Letters("█", "├─●┤", "█▓▒░▚▞", "▁▂▃▄▅▆▇█", "← chosen", "→")
_ASCII = _Letters("=", "|-o|", "#=+:~.", "_.-=+*#@", "<- chosen", "to")


def print_graph(console: Console, chart: Chart) -> None:
    """Print a chart: its title, its lines, and a legend."""
    letters = _ASCII if console.options.ascii_only else _UNICODE
    console.print(Text(f"{chart.title}: {chart.y} by {chart.x}", style="bold"), soft_wrap=True)
    draw = _DRAW.get(chart.kind, _intervals)
    for line in draw(chart, letters, console.width):
        console.print(line, soft_wrap=True)


def _intervals(chart: Chart, letters: _Letters, width: int) -> Iterator[Text]:
    """Draw a line for each value: its interval `├──●──┤`, or a bar without one."""
    names = [_joined(mark.place(), mark.panel, mark.series) for mark in chart.marks]
    labels = _labels(names, [mark.y for mark in chart.marks], width)
    most = max((mark.y if mark.high is None else mark.high for mark in chart.marks), default=0.0)
    room = width - len(labels[0]) if labels else width
    room -= len(letters.chosen) + 1 if any(mark.chosen for mark in chart.marks) else 0
    colours = colours_of(chart.series())
    for mark, label in zip(chart.marks, labels, strict=True):
        line = Text(label)
        at = _place(mark.y, most, room)
        drawn = [letters.bar] * at
        if mark.low is not None and mark.high is not None:
            left, dash, middle, right = tuple(letters.interval)
            low = min(_place(mark.low, most, room), at)
            high = max(_place(mark.high, most, room), at)
            drawn = [" "] * low + [dash] * (high - low + 1)
            drawn[low], drawn[high], drawn[at] = left, right, middle
        line.append("".join(drawn), style=colours[mark.series])
        if mark.chosen:
            line.append(f" {letters.chosen}", style="bold")
        yield line


def _stacked(chart: Chart, letters: _Letters, width: int) -> Iterator[Text]:
    """Draw a bar for each x, with a letter for each part."""
    parts = chart.series()
    colours = colours_of(parts)
    bars: dict[str, list[ChartMark]] = {}
    for mark in chart.marks:
        bars.setdefault(_joined(mark.place(), mark.panel), []).append(mark)
    totals = [sum(mark.y for mark in marks) for marks in bars.values()]
    labels = _labels(list(bars), totals, width)
    most, room = max(totals, default=0.0), width - len(labels[0]) if labels else width
    for marks, label in zip(bars.values(), labels, strict=True):
        line = Text(label)
        reached = 0.0
        for mark in marks:
            # Edges are rounded, not parts: rounding errors must not add up.
            begin, reached = _place(reached, most, room), reached + mark.y
            letter = letters.parts[parts.index(mark.series) % len(letters.parts)]
            line.append(letter * (_place(reached, most, room) - begin), style=colours[mark.series])
        yield line
    legend = Text()
    for number, part in enumerate(parts):
        legend.append(letters.parts[number % len(letters.parts)], style=colours[part])
        legend.append(f" {part}   " if part != parts[-1] else f" {part}")
    yield legend


def _lines(chart: Chart, letters: _Letters, width: int) -> Iterator[Text]:
    """Draw a row of steps for each series, from its first value to its last."""
    groups: dict[str, list[ChartMark]] = {}
    for mark in chart.marks:
        groups.setdefault(_joined(mark.panel, mark.series) or chart.y, []).append(mark)
    least = min((mark.y for mark in chart.marks), default=0.0)
    most = max((mark.y for mark in chart.marks), default=0.0)
    labels = _aligned(list(groups), width // 2, "<")
    colours = colours_of(chart.series())
    for marks, label in zip(groups.values(), labels, strict=True):
        line = Text(f"{label}  ")
        steps = ""
        for mark in evenly(marks, max(2, width // 4)):
            share = (mark.y - least) / (most - least) if most > least else 0.0
            steps += letters.steps[min(int(share * len(letters.steps)), len(letters.steps) - 1)]
        line.append(steps, style=colours[marks[0].series])
        first, last = _number(marks[0].y), _number(marks[-1].y)
        line.append(f"  {first} {letters.to} {last}" if len(marks) > 1 else f"  {last}")
        yield line


def _place(value: float, most: float, room: int) -> int:
    """Return the column of a value, on a scale from 0 to `most` over the available columns."""
    columns = max(_LEAST_WIDTH, min(room - 1, _MOST_WIDTH))
    return 0 if most <= 0 else round(max(0.0, value) / most * (columns - 1))


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _labels(names: list[str], values: list[float], width: int) -> list[str]:
    """Return names with their values, all of one length."""
    columns = (_aligned(names, width // 2, "<"), _aligned([*map(_number, values)], width, ">"))
    return [f"{name} {value}  " for name, value in zip(*columns, strict=True)]


def _aligned(texts: list[str], most: int, to: str) -> list[str]:
    flat = [" ".join(text.split()) for text in texts]
    width = min(max(map(len, flat), default=0), most)
    return [f"{text[:width]:{to}{width}}" for text in flat]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


_DRAW = {
    **dict.fromkeys(("stacked", "rows"), _stacked),
    **dict.fromkeys(("lines", "areas", "bands"), _lines),
}
