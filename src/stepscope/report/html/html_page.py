"""A report as one HTML file that needs no network.

All recorded names are escaped, and a content security policy allows only scripts whose hashes it
lists: injected markup would be shown, not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from itertools import count
from pathlib import Path

from stepscope.analyze.comparison_sides import group_runs
from stepscope.analyze.findings import Finding, findings_of
from stepscope.analyze.search_result import is_search
from stepscope.files import cannot_write, replace_file
from stepscope.records.run_reader import Run, load_run
from stepscope.records.sweep_folder import Sweep, is_sweep, load_sweep
from stepscope.report.charts.chart import Chart
from stepscope.report.charts.vega_lite import Drawn
from stepscope.report.html.chart_embed import as_figures, for_page, in_words, vega_script
from stepscope.report.html.page_content import Document
from stepscope.report.html.run_page import document_of_run
from stepscope.report.html.search_page import document_of_search
from stepscope.report.html.sweep_page import document_of_groups, document_of_sweep
from stepscope.report.terminal.table_style import FigureList

_QUOTED = re.compile("`([^`]+)`")


def to_html(document: Document, vega_script: str) -> str:
    """Return a document as a page; `vega_script` draws its charts."""
    style, script = part("page.css"), part("page.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(vega_script)} "
        f"{_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    return "".join(
        (
            beginning(document.title, policy),
            f"<style>{style}</style>\n</head>\n<body>\n",
            *body(document),
            chart_data([for_page(chart) for chart in document.charts()]),
            f'<script type="module">{vega_script}</script>\n',
            f'<script type="module">{script}</script>\n</body>\n</html>\n',
        )
    )


def beginning(title: str, policy: str = "") -> str:
    """Return the beginning of a page, up to its title; the live page has its policy in headers."""
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n' if policy else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{meta}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)} - stepscope</title>\n"
    )


def chart_data(charts: Sequence[Drawn]) -> str:
    """Return the element with the specifications of all charts."""
    # Escape `<`: it could only close the script.
    data = json.dumps(charts, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="charts">{data}</script>\n'


def part(name: str) -> str:
    """Return a static part of the page: its style or its script."""
    return resources.files("stepscope.report.html").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def body(document: Document) -> Iterator[str]:
    """Yield the visible part of the page; charts are empty elements with their data."""
    yield '<header>\n<a class="skip" href="#main">Skip to the report</a>\n'
    yield f"<h1>{escape(document.title)}</h1>\n<p>{escape(document.subtitle)}</p>\n"
    links = {"findings": "Findings"} if document.findings else {}
    links["figures"] = "Figures"
    links |= {f"section-{place}": each.title for place, each in enumerate(document.sections)}
    links["appendix"] = "Record"
    yield '<nav aria-label="Contents">\n<ul>\n'
    yield from (f'<li><a href="#{to}">{escape(name)}</a></li>\n' for to, name in links.items())
    yield '</ul>\n</nav>\n</header>\n<main id="main" tabindex="-1">\n'
    yield '<section class="verdict" aria-label="Verdict">\n'
    yield from (f"<p>{prose(sentence)}</p>\n" for sentence in document.verdict)
    yield "</section>\n"
    if document.findings:
        yield '<section id="findings" tabindex="-1">\n<h2>Findings</h2>\n<ol class="findings">\n'
        yield from map(_finding, document.findings)
        yield "</ol>\n</section>\n"
    yield '<section id="figures" tabindex="-1">\n<h2>Figures</h2>\n<div class="tables">\n'
    for each in document.figures:
        yield f"<div>\n<h3>{escape(each.title)}</h3>\n{table(each)}</div>\n"
    yield "</div>\n</section>\n"
    number = 0
    for place, section in enumerate(document.sections):
        yield f'<section id="section-{place}" tabindex="-1">\n<h2>{escape(section.title)}</h2>\n'
        yield from (f'<p class="note">{prose(note)}</p>\n' for note in section.notes)
        yield '<div class="charts">\n'
        yield from map(_figure, section.charts, count(number))
        yield "</div>\n</section>\n"
        number += len(section.charts)
    yield '<section id="appendix" tabindex="-1">\n<h2>Record</h2>\n'
    for each in document.appendix:
        yield f"<details>\n<summary>{escape(each.title)}</summary>\n{table(each)}</details>\n"
    yield "</section>\n</main>\n"


def prose(text: str) -> str:
    """Escape a sentence; what it quotes in backticks becomes code."""
    return _QUOTED.sub(r"<code>\1</code>", escape(text))


def _finding(finding: Finding) -> str:
    evidence = "".join(f"<li>{prose(each)}</li>\n" for each in finding.evidence)
    command = f"<p><code>{escape(finding.command)}</code></p>\n" if finding.command else ""
    return f"<li>\n<p>{prose(finding.text)}</p>\n<ul>\n{evidence}</ul>\n{command}</li>\n"


def _figure(chart: Chart, number: int) -> str:
    # Panels, or one bar of many parts, need the whole width.
    one_bar = chart.kind == "rows" and len({mark.x for mark in chart.marks}) == 1
    wide = ' class="wide"' if one_bar or len(chart.panels()) > 1 else ""
    about = f"<p>{escape(chart.subtitle)}</p>" if chart.subtitle else ""
    return (
        f"<figure{wide}>\n<figcaption><h3>{escape(chart.title)}</h3>{about}</figcaption>\n"
        f'<div class="chart" data-chart="{number}" role="img" '
        f'aria-label="{escape(in_words(chart))}"></div>\n'
        f"<details>\n<summary>Values</summary>\n{table(as_figures(chart))}</details>\n</figure>\n"
    )


def table(figures: FigureList) -> str:
    """Return a table of figures as HTML."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in figures.columns)
    rows = ""
    for first, *others in figures.rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        rows += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>\n'
    note = f'<p class="note">{prose(figures.note)}</p>\n' if figures.note else ""
    # A table wider than the screen scrolls on its own, also by keyboard.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(figures.title)}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n{note}"
    )


# --- The page as a file


FILE = "report.html"


def document_of(recorded: Run | Sweep | Sequence[Run]) -> Document:
    """Return the report of a run or a sweep."""
    if isinstance(recorded, Run):
        return document_of_run(recorded, findings_of(recorded))
    if isinstance(recorded, Sweep):
        return document_of_search(recorded) if is_search(recorded) else document_of_sweep(recorded)
    return document_of_groups(group_runs(recorded))


def write_page_of(folder: Path) -> Path:
    """Write `report.html` into the folder of a run or a sweep; return its path."""
    recorded = load_sweep(folder) if is_sweep(folder) else load_run(folder)
    return write_page(document_of(recorded), folder / FILE)


def write_page(document: Document, target: Path) -> Path:
    """Write a page atomically."""
    page = to_html(document, vega_script())
    try:
        # JSON can hold a lone surrogate, which UTF-8 cannot encode.
        replace_file(target, [page.encode("utf-8", "replace")], make_folder=False)
    except OSError as error:
        advice = "Choose another file with stepscope report RUN --html FILE."
        raise cannot_write(error, str(target), advice) from error
    return target
