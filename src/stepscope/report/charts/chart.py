"""Charts: described once in plain values, drawn as PNG, SVG, PDF, HTML or Vega-Lite JSON.

A `Chart` is independent of the library that draws it; `report.terminal.text_chart` draws it as
text. vl-convert, of the extra `report`, draws the files. It needs neither a browser nor a network,
and an HTML file is self-contained.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stepscope.errors import MissingExtraError, RequestError, nearest
from stepscope.files import cannot_write
from stepscope.stats import Interval

if TYPE_CHECKING:
    from stepscope.report.charts.vega_lite import Drawn

# `areas` are stacked and `bands` show lines with their extremes, both against numbers. `rows` and
# `waterfall` are horizontal. In a `scatter` only chosen points are joined. `roofline` has
# logarithmic axes.
Kind = Literal[
    "points",
    "bars",
    "stacked",
    "lines",
    "areas",
    "bands",
    "rows",
    "waterfall",
    "scatter",
    "roofline",
]

FORMATS = ("png", "svg", "pdf", "html", "json")

_PNG_SCALE = 2  # pixels per point: sharp in print


@dataclass(frozen=True)
class ChartMark:
    """One value. `low` and `high` are its interval, None without one.

    In a waterfall they are the start and the end of the part.
    """

    x: float | str
    y: float
    series: str = ""
    panel: str = ""
    low: float | None = None
    high: float | None = None
    chosen: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart in plain values. Axis names include the unit; words on x keep their order.

    `limit` is the name and the value of a limit. `from_zero` makes a band start at 0. `shaded` is
    the name of a condition, and the ranges of x in which it held.
    """

    title: str
    kind: Kind
    x: str
    y: str
    marks: Sequence[ChartMark]
    subtitle: str = ""
    limit: tuple[str, float] | None = None
    from_zero: bool = True
    shaded: tuple[str, Sequence[tuple[float, float]]] | None = None

    def series(self) -> list[str]:
        """Return the names of the series, in order of appearance."""
        return list(dict.fromkeys(mark.series for mark in self.marks))

    def panels(self) -> list[str]:
        """Return the names of the panels, in order of appearance."""
        return list(dict.fromkeys(mark.panel for mark in self.marks))


# --- Intervals. Those of two runs on a busy machine can reach from 0 to a thousandfold.


_MOST_TIMES = 4  # times the largest value; wider ones would flatten the chart


def with_interval(
    x: float | str, found: Interval, series: str = "", times: float = 1, *, chosen: bool = False
) -> ChartMark:
    """Return a mark with a median and its interval."""
    low, high = (None if end is None else end * times for end in (found.low, found.high))
    return ChartMark(x, found.median * times, series, low=low, high=high, chosen=chosen)


def drawable(marks: Iterable[ChartMark]) -> tuple[list[ChartMark], str]:
    """Return the marks without intervals that would flatten a chart, and a note on them."""
    given = list(marks)
    most = max((mark.y for mark in given), default=0.0) * _MOST_TIMES
    too_wide = [mark for mark in given if mark.high is not None and mark.high > most]
    if not too_wide:
        return given, ""
    kept = [replace(mark, low=None, high=None) if mark in too_wide else mark for mark in given]
    note = f"{len(too_wide)} of {len(given)} intervals are too wide to be drawn"
    return kept, f"{note}: more rounds would tell"


# --- Files


def check_form(path: Path) -> str:
    """Return the format that a file's suffix names.

    Raises:
        RequestError: the format is unknown.
    """
    form = path.suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise RequestError(
            f"{path}: wanted a file name that ends in a form.{nearest(form, FORMATS)}"
        )
    return form


def save(chart: Chart, path: Path) -> Path:
    """Write a chart in the format of the file's suffix; return the path.

    Raises:
        RequestError: the format is unknown, or the file cannot be written.
        MissingExtraError: vl-convert is not installed.
    """
    content = _render(chart, check_form(path))
    try:
        path.write_bytes(content)
    except OSError as error:
        raise cannot_write(error, str(path), advice="") from error
    return path


def _render(chart: Chart, form: str) -> bytes:
    try:
        import vl_convert

        from stepscope.report.charts.vega_lite import VEGA_LITE, to_vega_lite
    except ModuleNotFoundError as error:
        raise MissingExtraError("drawing a chart", str(error.name), "report") from error
    drawn = to_vega_lite(chart)
    if form == "png":
        return bytes(vl_convert.vegalite_to_png(drawn, vl_version=VEGA_LITE, scale=_PNG_SCALE))
    if form == "svg":
        return vl_convert.vegalite_to_svg(drawn, vl_version=VEGA_LITE).encode()
    if form == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(drawn, vl_version=VEGA_LITE))
    if form == "json":
        return (json.dumps(drawn, indent=2) + "\n").encode()
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    return _page(chart.title, drawn, script).encode()


def _page(title: str, drawn: Drawn, script: str) -> str:
    # Escape `<`: it could only close the script.
    data = json.dumps(drawn).replace("<", "\\u003c")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{html.escape(title)}'
        f'</title>\n<div id="chart"></div>\n<script type="module">\n{script}\n'
        f'vegaEmbed("#chart", {data}, {{"actions": false}});\n</script>\n</html>\n'
    )
