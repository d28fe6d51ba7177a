"""A run as the output of a notebook cell: its verdict, and charts by subject.

Charts are images, so that neither their style nor a recorded name can affect the notebook.
"""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from html import escape
from importlib.util import find_spec

from stepscope.analyze.findings import Finding, findings_of
from stepscope.records.run_reader import Run
from stepscope.report.charts.chart import Chart
from stepscope.report.charts.vega_lite import VEGA_LITE, to_vega_lite
from stepscope.report.expected_gain import change_of, gain_of
from stepscope.report.html.chart_embed import in_words
from stepscope.report.html.html_page import prose, stressed, table
from stepscope.report.html.run_page import document_of_run

_HOW_TO_GET_CHARTS = "For charts, install vl-convert: pip install 'stepscope[report]'."


def to_cell(run: Run) -> str:
    """Return a run as HTML: charts by subject, or the table of phases without vl-convert."""
    document = document_of_run(run, findings_of(run))
    found = "".join(_finding(each, document.wall_s) for each in document.findings)
    shown = ""
    if not find_spec("vl_convert"):
        shown = "".join(map(table, document.figures[:1]))
        shown += f"<p><small>{escape(_HOW_TO_GET_CHARTS)}</small></p>\n"
    else:
        for section in document.sections:
            for chart in section.charts[:1]:
                # NaN and infinite losses have no position on an axis.
                if placed := [mark for mark in chart.marks if math.isfinite(mark.y)]:
                    shown += _image(replace(chart, marks=placed))
    return (
        f"<div>\n<p><strong>{escape(document.title)}</strong>: {escape(document.subtitle)}</p>\n"
        f"<p>{stressed(' '.join(document.verdict), document.stressed)}</p>\n"
        f"<ul>\n{found}</ul>\n{shown}</div>\n"
    )


def _finding(finding: Finding, wall_s: float | None) -> str:
    change, gain = change_of(finding), gain_of(finding, wall_s)
    brings = f" {prose(change)}{escape(f': {gain}' if gain else '')}." if change else ""
    return f"<li>{prose(finding.text)}{brings}</li>\n"


def _image(chart: Chart) -> str:
    import vl_convert

    svg = vl_convert.vegalite_to_svg(to_vega_lite(chart), vl_version=VEGA_LITE)
    content = base64.b64encode(svg.encode()).decode()
    return f'<img src="data:image/svg+xml;base64,{content}" alt="{escape(in_words(chart))}">\n'
