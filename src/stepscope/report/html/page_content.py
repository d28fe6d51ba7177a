"""The content of a report, independent of its format: page, Markdown, files or JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.analyze.findings import Finding
from stepscope.records.types import GroupFigures, SearchFigures, Summary
from stepscope.report.charts.chart import Chart
from stepscope.report.terminal.table_style import FigureList

_COURSES = ("lines", "areas", "bands")


@dataclass(frozen=True)
class BarPart:
    """A part of a bar; `colour` is that of a phase, a part of the run, or a number."""

    name: str
    share: float
    value: str
    colour: str


@dataclass(frozen=True)
class Bar:
    """Parts of a whole, side by side; `length` is its share of the longest bar beside it."""

    title: str
    value: str
    parts: Sequence[BarPart]
    length: float = 1.0
    thin: bool = False
    legend: Sequence[BarPart] = ()


@dataclass(frozen=True)
class Tile:
    """A figure of the whole run; `share` fills a meter below it."""

    title: str
    value: str
    unit: str
    note: str = ""
    share: float | None = None
    colour: str = "plain"


@dataclass(frozen=True)
class Section:
    """Bars, tables and charts on one subject; `notes` explain them, or say what is missing.

    `about` stands beside the title, and `short` beside the link to it.
    """

    title: str
    charts: Sequence[Chart]
    notes: Sequence[str] = ()
    bars: Sequence[Bar] = ()
    figures: Sequence[FigureList] = ()
    about: str = ""
    short: str = ""

    def with_data(self) -> Section:
        """Return the section without empty charts, and without lines through one point."""
        shown = [
            chart
            for chart in self.charts
            if len({mark.x for mark in chart.marks}) > (chart.kind in _COURSES)
        ]
        return replace(self, charts=shown)


@dataclass(frozen=True)
class Document:
    """A report: `verdict` is its conclusion, `values` are the figures for programs.

    `stressed` are phrases of the verdict. `bars` show what it would bring, and `command` proves
    it. `wall_s` is the time that findings save a part of. `insights` come before the figures.
    """

    title: str
    subtitle: str
    verdict: Sequence[str]
    findings: Sequence[Finding]
    figures: Sequence[FigureList]
    sections: Sequence[Section]
    values: Summary | GroupFigures | SearchFigures
    appendix: Sequence[FigureList] = ()
    stressed: Sequence[str] = ()
    command: str | None = None
    bars: Sequence[Bar] = ()
    tiles: Sequence[Tile] = ()
    wall_s: float | None = None
    insights: Sequence[Section] = ()

    def charts(self) -> list[Chart]:
        """Return all charts, in their order on the page."""
        return [chart for section in self.sections for chart in section.charts]


def split_at(text: str, phrases: Sequence[str]) -> list[str]:
    """Cut a text at some phrases, which are then at the odd places."""
    if not phrases:
        return [text]
    return re.split(f"({'|'.join(map(re.escape, phrases))})", text)
