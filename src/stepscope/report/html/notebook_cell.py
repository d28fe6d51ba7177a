"""A run as the output of a notebook cell: its verdict, and charts by subject.

Charts are images, so that neither their style nor a recorded name can affect the notebook.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from importlib.util import find_spec

from stepscope.analyze.findings import findings_of
from stepscope.records.run_reader import Run
from stepscope.report.charts.chart import Chart
from stepscope.report.charts.vega_lite import VEGA_LITE, to_vega_lite
from stepscope.report.html.chart_embed import in_words
from stepscope.report.html.page_content import Document
from stepscope.report.html.run_page import document_of_run
from stepscope.report.terminal.table_style import FigureList

_HOW_TO_GET_CHARTS = "Charts are drawn where vl-convert is: pip install 'stepscope[report]'."


def to_cell(run: Run) -> str:
    """Return a run as HTML, with charts if vl-convert is installed.

    Without it, the cell has the table of the phases only.
    """
    document = document_of_run(run, findings_of(run))
    if find_spec("vl_convert"):
        shown = "".join(map(_image, _one_of_each_section(document)))
    else:
        tables = "".join(map(_table, document.figures[:1]))
        shown = f"{tables}<p><small>{escape(_HOW_TO_GET_CHARTS)}</small></p>\n"
    return f"<div>\n{''.join(_headline(document))}{shown}</div>\n"


def _headline(document: Document) -> Iterator[str]:
    yield f"<p><strong>{escape(document.title)}</strong>: {escape(document.subtitle)}</p>\n"
    yield f"<p>{escape(' '.join(document.verdict))}</p>\n"
    if document.findings:
        found = "".join(f"<li>{escape(each.text)}</li>\n" for each in document.findings)
        yield f"<ul>\n{found}</ul>\n"


def _one_of_each_section(document: Document) -> Iterator[Chart]:
    for section in document.sections:
        for chart in section.charts[:1]:
            # NaN and infinite losses have no position on an axis.
            if placed := [mark for mark in chart.marks if math.isfinite(mark.y)]:
                yield replace(chart, marks=placed)


def _image(chart: Chart) -> str:
    import vl_convert

    svg = vl_convert.vegalite_to_svg(to_vega_lite(chart), vl_version=VEGA_LITE)
    content = base64.b64encode(svg.encode()).decode()
    return f'<img src="data:image/svg+xml;base64,{content}" alt="{escape(in_words(chart))}">\n'


def _table(figures: FigureList) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in figures.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in figures.rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"
