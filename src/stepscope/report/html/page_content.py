"""What a report says, before anybody decides how it looks: a page, Markdown, files, JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepscope.analyze.findings import Finding
from stepscope.report.charts.chart import Chart

_COURSES = ("lines", "areas", "bands")


@dataclass(frozen=True)
class FigureList:
    """A table: figures in columns, the first of which names its row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Charts that belong together; `notes` say what is to be known of them, or is missing."""

    title: str
    charts: Sequence[Chart]
    notes: Sequence[str] = ()

    def with_data(self) -> Section:
        """Leave out charts that have nothing to show."""
        return replace(self, charts=[chart for chart in self.charts if _shows_something(chart)])


@dataclass(frozen=True)
class Document:
    """A report. `verdict` is what somebody should know who reads no further.

    `values` are the figures as plain values, for a program.
    """

    title: str
    subtitle: str
    verdict: Sequence[str]
    findings: Sequence[Finding]
    figures: Sequence[FigureList]
    sections: Sequence[Section]
    values: Mapping[str, Any]
    appendix: Sequence[FigureList] = ()

    def charts(self) -> list[Chart]:
        """List every chart, in their order on the page."""
        return [chart for section in self.sections for chart in section.charts]

    def to_json(self) -> dict[str, Any]:
        """Return what was found as plain values; charts are the record's own figures."""
        findings = [finding.to_json() for finding in self.findings]
        said = {"title": self.title, "verdict": list(self.verdict), "findings": findings}
        return {**said, "figures": dict(self.values)}


def _shows_something(chart: Chart) -> bool:
    """Say whether there is anything to see; a line through one point is none."""
    places = {mark.x for mark in chart.marks}
    return len(places) > 1 if chart.kind in _COURSES else bool(places)
