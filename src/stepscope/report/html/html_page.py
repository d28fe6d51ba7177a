"""A report as one HTML file that needs no network.

All recorded names are escaped, and a content security policy allows only scripts whose hashes it
lists: injected markup would be shown, not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
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
from stepscope.records.table import Table, read_table
from stepscope.report.charts.chart import Chart
from stepscope.report.charts.vega_lite import Drawn
from stepscope.report.expected_gain import change_of, gain_of
from stepscope.report.html.chart_embed import as_figures, for_page, in_words, vega_script
from stepscope.report.html.page_content import Bar, BarPart, Document, Section, Tile, split_at
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
    parts = list(_parts(document))
    yield '<div class="page" id="page">\n<nav class="contents" aria-label="Contents">\n'
    yield '<a class="skip" href="#main">Skip to the report</a>\n<ul>\n'
    for to, title, short, _ in (("main", "Overview", "", ""), *parts):
        plain = escape(title.replace("`", ""))
        yield f'<li><a href="#{to}"><span>{plain}</span>{_small(short)}</a></li>\n'
    yield f"</ul>\n</nav>\n<div>\n<header>\n<h1>{escape(document.title)}</h1>\n"
    yield f'<p>{escape(document.subtitle)}</p>\n</header>\n<main id="main" tabindex="-1">\n'
    yield from _verdict(document)
    yield from (html for *_, html in parts)
    yield "</main>\n</div>\n</div>\n"


def _parts(document: Document) -> Iterator[tuple[str, str, str, str]]:
    """Yield the parts below the verdict: identifier, title, short figure of its link, and HTML."""
    if document.findings:
        title = _FIRST if _with_gain(document) else _ALSO
        yield "findings", title, "", "".join(_findings(document))
    number = 0
    for kind, sections in (("insight", document.insights), ("section", document.sections)):
        if kind == "section":
            tables = "".join(map(_titled_table, document.figures))
            html = f'<h2>Figures</h2>\n<div class="tables">\n{tables}</div>\n'
            yield "figures", "Figures", "", _linked("figures", html)
        for place, each in enumerate(sections):
            to = f"{kind}-{place}"
            yield to, each.title, each.short, _linked(to, "".join(_section(each, number)))
            number += len(each.charts)
    html = "<h2>Record</h2>\n" + "".join(
        f"<details>\n<summary>{escape(each.title)}</summary>\n{table(each)}</details>\n"
        for each in document.appendix
    )
    yield "appendix", "Record", "", _linked("appendix", html)


def _linked(to: str, html: str) -> str:
    return f'<section id="{to}" tabindex="-1">\n{html}</section>\n'


def _verdict(document: Document) -> Iterator[str]:
    yield '<section class="verdict" aria-label="Verdict">\n'
    for sentence in document.verdict:
        yield f"<p>{stressed(sentence, document.stressed)}</p>\n"
    if document.command:
        yield f'<div class="prove"><span>Prove it</span>{command(document.command)}</div>\n'
    yield from map(_bar, document.bars)
    yield "</section>\n"
    if document.tiles:
        yield '<ul class="tiles">\n'
        yield from map(_tile, document.tiles)
        yield "</ul>\n"


_FIRST, _ALSO = "Do this first", "Findings"


def _with_gain(document: Document) -> list[Finding]:
    return [each for each in document.findings if gain_of(each, document.wall_s)]


def _findings(document: Document) -> Iterator[str]:
    """Yield the findings that save time as cards, then the others."""
    gains = _with_gain(document)
    others = [each for each in document.findings if each not in gains]
    place = "findings"
    for title, about, found in (
        (_FIRST, "ranked by what it would bring", gains),
        ("Also found" if gains else _ALSO, "", others),
    ):
        if not found:
            continue
        yield f'<section id="{place}" tabindex="-1">\n<h2>{title}{_small(about)}</h2>\n'
        yield f'<ol class="findings{" cards" if found is gains else ""}">\n'
        yield from (_finding(each, gain_of(each, document.wall_s)) for each in found)
        yield "</ol>\n</section>\n"
        place = "other-findings"


def _section(section: Section, number: int) -> Iterator[str]:
    yield f"<h2>{prose(section.title)}{_small(section.about)}</h2>\n"
    yield from (f'<p class="note">{prose(note)}</p>\n' for note in section.notes)
    yield from map(_bar, section.bars)
    if section.figures:
        yield '<div class="tables">\n'
        yield from map(_titled_table, section.figures)
        yield "</div>\n"
    if section.charts:
        yield '<div class="charts">\n'
        yield from map(_figure, section.charts, count(number))
        yield "</div>\n"


def _small(about: str) -> str:
    return f" <small>{escape(about)}</small>" if about else ""


def _titled_table(figures: FigureList) -> str:
    return f"<div>\n<h3>{prose(figures.title)}</h3>\n{table(figures)}</div>\n"


def prose(text: str) -> str:
    """Escape a sentence; what it quotes in backticks becomes code."""
    return _QUOTED.sub(r"<code>\1</code>", escape(text))


def stressed(text: str, phrases: Sequence[str]) -> str:
    """Escape a sentence and stress some of its phrases."""
    parts = map(prose, split_at(text, phrases))
    return "".join(
        f"<strong>{each}</strong>" if place % 2 else each for place, each in enumerate(parts)
    )


def command(line: str) -> str:
    """Return a command with a button that copies it."""
    return (
        f'<div class="command"><code>{escape(line)}</code>'
        f'<button type="button" class="copy" aria-label="Copy the command {escape(line)}">Copy'
        "</button></div>"
    )


def _finding(finding: Finding, gain: str | None) -> str:
    change = change_of(finding)
    badge = f'<p class="gain">{escape(gain)}</p>\n' if gain else ""
    head = f"<h3>{prose(change or finding.text)}</h3>\n"
    text = f"<p>{prose(finding.text)}</p>\n" if change else ""
    evidence = "".join(f"<li>{prose(each)}</li>\n" for each in finding.evidence)
    listed = f"<ul>\n{evidence}</ul>\n" if evidence else ""
    prove = f"{command(finding.command)}\n" if finding.command else ""
    return f"<li>\n{badge}{head}{text}{listed}{prove}</li>\n"


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
    words = [' class="words"' if at in figures.left else "" for at in range(len(figures.columns))]
    head = "".join(
        f'<th scope="col"{kind}>{prose(name)}</th>'
        for kind, name in zip(words, figures.columns, strict=True)
    )
    rows = ""
    for row in figures.rows:
        first, *others = (
            f"<code>{escape(cell)}</code>" if at in figures.code and cell else escape(cell)
            for at, cell in enumerate(row)
        )
        cells = "".join(
            f"<td{kind}>{cell}</td>" for kind, cell in zip(words[1:], others, strict=True)
        )
        rows += f'<tr><th scope="row">{first}</th>{cells}</tr>\n'
    note = f'<p class="note">{prose(figures.note)}</p>\n' if figures.note else ""
    # A table wider than the screen scrolls on its own, also by keyboard.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(figures.title)}">\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n{note}"
    )


# --- Bars of parts as SVG: drawn without a script, and without styles, which the policy refuses


_WIDE, _PHONE = 880, 300  # pixels of a bar on a screen and on a phone
_LETTER, _BESIDE = 7.6, 18  # pixels that a name needs


def _bar(bar: Bar) -> str:
    """Return a bar with its captions, and its legend if it has one."""
    ends = f"<span>{escape(bar.title)}</span><span>{escape(bar.value)}</span>"
    captions = f'<p class="captions">{ends}</p>\n'
    legend = ""
    if bar.legend:
        items = "".join(
            f'<li><svg class="swatch" aria-hidden="true"><rect class="{_colour(part)}" '
            'width="100%" height="100%"/></svg>'
            f"{escape(part.name)} <small>{escape(part.value)}</small></li>\n"
            for part in bar.legend
        )
        legend = f'<ul class="legend">\n{items}</ul>\n'
    drawn, at = "", 0.0
    for part in bar.parts:
        width = part.share * bar.length
        drawn += _svg_part(part, at, width, named=not bar.thin and _fits(part, width, _WIDE))
        at += width
    words = "; ".join(_words(part) for part in bar.legend or bar.parts)
    thin = " thin" if bar.thin else ""
    label = escape(f"{bar.title}: {words}" if words else bar.title)
    svg = f'<svg class="bar-of-parts{thin}" role="img" aria-label="{label}">{drawn}</svg>\n'
    return f"{captions}{svg}{legend}"


def _svg_part(part: BarPart, at: float, width: float, *, named: bool) -> str:
    text = ""
    if named:
        only_wide = "" if _fits(part, width, _PHONE) else ' class="only-wide"'
        text = (
            f'<g{only_wide}><text x="9" y="19" class="{_colour(part)}">{escape(part.name)}</text>'
            f'<text x="9" y="36" class="small {_colour(part)}">{escape(part.value)}</text></g>'
        )
    return (
        f'<svg x="{at:.3%}" width="{width:.3%}" height="100%"><title>{escape(_words(part))}</title>'
        f'<rect class="{_colour(part)}" width="100%" height="100%"/>{text}</svg>'
    )


def _fits(part: BarPart, width: float, pixels: int) -> bool:
    longest = max(len(part.name), len(part.value))
    return width * pixels >= longest * _LETTER + _BESIDE


def _words(part: BarPart) -> str:
    return f"{part.name}, {part.value}" if part.value else part.name


def _colour(part: BarPart) -> str:
    return escape(f"of-{part.colour.replace(' ', '-')}")  # recorded names among them


def _tile(tile: Tile) -> str:
    """Return a figure with its meter."""
    meter = ""
    if tile.share is not None:
        filled = min(max(tile.share, 0.0), 1.0)
        meter = (
            '<svg class="meter" aria-hidden="true"><rect class="of-empty" width="100%" '
            f'height="100%"/><rect class="of-{tile.colour}" width="{filled:.2%}" height="100%"/>'
            "</svg>\n"
        )
    note = f"<small>{escape(tile.note)}</small>\n" if tile.note else ""
    return (
        f"<li><small>{escape(tile.title)}</small>\n<p><b>{escape(tile.value)}</b> "
        f"{escape(tile.unit)}</p>\n{meter}{note}</li>\n"
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


def recorded_in(folder: Path, read: Callable[[Path], Table] = read_table) -> Run | Sweep:
    """Return the run or the sweep of a folder."""
    return load_sweep(folder) if is_sweep(folder) else load_run(folder, read)


def write_page_of(folder: Path) -> Path:
    """Write `report.html` into the folder of a run or a sweep; return its path."""
    return write_page(document_of(recorded_in(folder)), folder / FILE)


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
