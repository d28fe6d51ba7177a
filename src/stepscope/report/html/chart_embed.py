"""Charts in an HTML page: in the page's colours and width, with a text alternative.

The ink of a page is `currentColor`, so that a chart follows the page's dark mode and print style
without being drawn again. The script that draws charts is bundled once by vl-convert and cached.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import asdict
from importlib import metadata
from typing import Any

from stepscope.errors import MissingExtraError
from stepscope.files import cache_folder, replace_file
from stepscope.report.charts.chart import Chart, ChartMark
from stepscope.report.charts.vega_lite import Drawn, to_vega_lite
from stepscope.report.palette import INKS
from stepscope.report.terminal.table_style import FigureList

_ON_PAPER_ONLY = ("$schema", "title", "background", "config", "width", "data")
_DIGITS = 6  # finer than a screen
_MOST_ROWS = 12
_MOST_NAMED = 8


def for_page(chart: Chart) -> Drawn:
    """Return the Vega-Lite specification of a chart; title, width and ink are the page's."""
    drawn = {
        name: _inked(part)
        for name, part in to_vega_lite(chart).items()
        if name not in _ON_PAPER_ONLY
    }
    if isinstance(drawn.get("height"), dict):  # a chart with a flexible width needs a fixed height
        drawn["height"] = drawn["height"]["step"] * len({mark.x for mark in chart.marks})
    words = any(isinstance(mark.x, str) for mark in chart.marks)
    values = [_slim(mark, words) for mark in chart.marks if math.isfinite(mark.y)]
    return {**drawn, "data": {"values": values}}


def _inked(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _inked(each) for name, each in part.items()}
    if isinstance(part, list):
        return [_inked(each) for each in part]
    return "currentColor" if part in INKS else part


def _slim(mark: ChartMark, words: bool) -> Drawn:
    """Return a mark without missing fields and invisible digits."""
    found = asdict(mark)
    if words and not isinstance(mark.x, str):
        found["x"] = f"{mark.x:g}"
    return {
        name: _short(value)
        for name, value in found.items()
        if value not in (None, "") and value is not False
    }


def _short(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def in_words(chart: Chart) -> str:
    """Return the text alternative of a chart: the range of each series."""
    ranges = []
    for name in chart.series()[:_MOST_NAMED]:
        values = [mark.y for mark in chart.marks if mark.series == name]
        least, most = _number(min(values)), _number(max(values))
        ranges.append(f"{name or chart.y}: {least}" + (f" to {most}" if most != least else ""))
    by = f" by {chart.x}" if chart.x else ""
    said = f"{chart.title}. {chart.y}{by}. {'; '.join(ranges)}."
    if chart.shaded is None:
        return said
    name, stretches = chart.shaded
    where = ", ".join(
        f"{_number(begin)} to {_number(end)}" for begin, end in stretches[:_MOST_NAMED]
    )
    more = len(stretches) - _MOST_NAMED
    return f"{said} Shaded ({name}): {where}{f' and {more} more' if more > 0 else ''}."


def as_figures(chart: Chart) -> FigureList:
    """Return a chart's values as a table with a row for each x; of many, a selection."""
    titles = list(dict.fromkeys(map(_column, chart.marks)))
    cells: dict[tuple[str, float | str], dict[str, str]] = {}
    for mark in chart.marks:
        cells.setdefault((mark.panel, mark.x), {})[_column(mark)] = _value(mark, chart)
    places = _some(list(cells))
    rows = [
        [
            ", ".join(filter(None, (panel, x if isinstance(x, str) else _number(x)))),
            *(cells[panel, x].get(title, "") for title in titles),
        ]
        for panel, x in places
    ]
    note = f"{len(places)} of {len(cells)}" if len(places) < len(cells) else ""
    columns = [chart.x or "what", *(title or chart.y for title in titles)]
    return FigureList(chart.title, columns, rows, note)


def _column(mark: ChartMark) -> str:
    return mark.series


def _value(mark: ChartMark, chart: Chart) -> str:
    shown = _number(mark.y)
    if mark.low is None or mark.high is None or mark.low == mark.high or chart.kind == "waterfall":
        return shown
    return f"{shown} ({_number(mark.low)} to {_number(mark.high)})"


def _some(places: list[tuple[str, float | str]]) -> list[tuple[str, float | str]]:
    if len(places) <= _MOST_ROWS:
        return places
    last = len(places) - 1
    return [places[round(number * last / (_MOST_ROWS - 1))] for number in range(_MOST_ROWS)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# --- The script that draws charts in a browser


_SNIPPET = "window.vegaEmbed = vegaEmbed;"


def vega_script() -> str:
    """Return Vega, Vega-Lite and vegaEmbed as one script, which sets `window.vegaEmbed`.

    Raises:
        MissingExtraError: vl-convert is not installed, and the script is not cached.
    """
    cache = cache_folder()
    folder = None if cache is None else cache / "vega"
    try:
        version = metadata.version("vl-convert-python")
    except metadata.PackageNotFoundError:
        kept = [] if folder is None else sorted(folder.glob("*.js"))
        if not kept:
            raise MissingExtraError("drawing a page", "vl-convert", "report") from None
        return kept[-1].read_text(encoding="utf-8")
    if folder is None:
        return _make()
    kept_as = folder / f"{version}.js"
    try:
        return kept_as.read_text(encoding="utf-8")
    except OSError:
        script = _make()
    with contextlib.suppress(OSError):  # a cache that is not writable: make it again next time
        replace_file(kept_as, [script.encode()])
    return script


def _make() -> str:
    import vl_convert

    newest = vl_convert.get_vegalite_versions()[-1]  # made for the same version of Vega
    script = str(vl_convert.javascript_bundle(_SNIPPET, vl_version=newest))
    # The script must not contain a closing tag.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
