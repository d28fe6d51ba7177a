"""Charts in an HTML page: in the page's colours and width, with a text alternative.

The ink of a page is `currentColor`, so that a chart follows the page's dark mode and print style
without being drawn again.
"""

from __future__ import annotations

import contextlib
import math
from importlib import metadata
from typing import Any

from stepscope.errors import MissingExtraError
from stepscope.files import cache_folder, replace_file
from stepscope.report.charts.chart import Chart, evenly
from stepscope.report.charts.vega_lite import Drawn, to_vega_lite
from stepscope.report.palette import INKS
from stepscope.report.terminal.table_style import FigureList
from stepscope.units import format_range

_ON_PAPER_ONLY = ("$schema", "title", "background", "config", "width", "data")
_DIGITS = 6  # finer than a screen
_MOST_ROWS = 12
_MOST_NAMED = 8


def for_page(chart: Chart) -> Drawn:
    """Return the Vega-Lite specification of a chart; title, width and ink are the page's."""
    whole = to_vega_lite(chart)
    values = [
        {
            name: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
            for name, value in mark.items()
            if value not in (None, "") and value is not False
        }
        for mark in whole["data"]["values"]
        if math.isfinite(mark["y"])
    ]
    drawn = {name: _inked(part) for name, part in whole.items() if name not in _ON_PAPER_ONLY}
    if isinstance(drawn.get("height"), dict):  # a chart with a flexible width needs a fixed height
        drawn["height"] = drawn["height"]["step"] * len({mark.x for mark in chart.marks})
    return {**drawn, "data": {"values": values}}


def _inked(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _inked(each) for name, each in part.items()}
    if isinstance(part, list):
        return [_inked(each) for each in part]
    return "currentColor" if part in INKS else part


def in_words(chart: Chart) -> str:
    """Return the text alternative of a chart: the range of each series."""
    ranges = []
    for name in chart.series()[:_MOST_NAMED]:
        values = [mark.y for mark in chart.marks if mark.series == name]
        least, most = _number(min(values)), _number(max(values))
        ranges.append(f"{name or chart.y}: {least}" + (f" to {most}" if most != least else ""))
    by = f" by {chart.x}" if chart.x else ""
    text = f"{chart.title}. {chart.y}{by}. {'; '.join(ranges)}."
    if chart.shaded is not None:
        name, stretches = chart.shaded
        shown = [f"{_number(begin)} to {_number(end)}" for begin, end in stretches[:_MOST_NAMED]]
        more = f" and {len(stretches) - len(shown)} more" if len(stretches) > len(shown) else ""
        text += f" Shaded ({name}): {', '.join(shown)}{more}."
    return text


def as_figures(chart: Chart) -> FigureList:
    """Return a chart's values as a table with a row for each x; of many, a selection."""
    titles = chart.series()
    cells: dict[tuple[str, float | str], dict[str, str]] = {}
    for mark in chart.marks:
        shown = _number(mark.y)
        if chart.kind != "waterfall" and mark.low != mark.high:
            shown += f" ({format_range(mark.low, mark.high, _number)})"
        cells.setdefault((mark.panel, mark.x), {})[mark.series] = shown
    places = evenly(list(cells), _MOST_ROWS)
    rows = []
    for panel, x in places:
        where = x if isinstance(x, str) else _number(x)
        values = (cells[panel, x].get(title, "") for title in titles)
        rows.append([f"{panel}, {where}" if panel else where, *values])
    note = f"{len(places)} of {len(cells)}" if len(places) < len(cells) else ""
    columns = [chart.x or "name", *(title or chart.y for title in titles)]
    return FigureList(chart.title, columns, rows, note)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# --- The script that draws charts in a browser


def vega_script() -> str:
    """Return Vega, Vega-Lite and vegaEmbed as one script, which sets `window.vegaEmbed`."""
    cache = cache_folder()
    try:
        version = metadata.version("vl-convert-python")
    except metadata.PackageNotFoundError:
        kept = [] if cache is None else sorted(cache.glob("vega/*.js"))
        if not kept:
            raise MissingExtraError("drawing a page", "vl-convert", "report") from None
        return kept[-1].read_text(encoding="utf-8")
    kept_as = None if cache is None else cache / "vega" / f"{version}.js"
    if kept_as is not None:
        with contextlib.suppress(OSError):
            return kept_as.read_text(encoding="utf-8")
    import vl_convert

    newest = vl_convert.get_vegalite_versions()[-1]  # made for the same version of Vega
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=newest)
    # The script must not contain a closing tag.
    script = str(bundle).replace("</script", "<\\/script").replace("<!--", "<\\!--")
    if kept_as is not None:
        with contextlib.suppress(OSError):  # a cache that is not writable: make it again next time
            replace_file(kept_as, [script.encode()])
    return script
