"""The content of a report, independent of its format: page, Markdown, files or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.analyze.findings import Finding
from stepscope.records.types import GroupFigures, SearchFigures, Summary
from stepscope.report.charts.chart import Chart
from stepscope.report.terminal.table_style import FigureList

_COURSES = ("lines", "areas", "bands")


@dataclass(frozen=True)
class Section:
    """Charts on one subject; `notes` explain them, or say what is missing."""

    title: str
    charts: Sequence[Chart]
    notes: Sequence[str] = ()

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
    """A report: `verdict` is its conclusion, `values` are the figures for programs."""

    title: str
    subtitle: str
    verdict: Sequence[str]
    findings: Sequence[Finding]
    figures: Sequence[FigureList]
    sections: Sequence[Section]
    values: Summary | GroupFigures | SearchFigures
    appendix: Sequence[FigureList] = ()

    def charts(self) -> list[Chart]:
        """Return all charts, in their order on the page."""
        return [chart for section in self.sections for chart in section.charts]
