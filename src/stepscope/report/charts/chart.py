"""Charts: described once in plain values, drawn as PNG, SVG, PDF, HTML or Vega-Lite's JSON.

A `Chart` knows nothing of the library that draws it; `report.terminal.text_chart` draws the same
one as text. vl-convert, which draws files, is the extra `report`. It needs neither a browser nor a
network, and an HTML file holds all that it shows itself with.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stepscope.errors import DISK_FULL_ERRNOS, MissingExtraError, RequestError, disk_full, nearest

# Points, bars side by side, parts on top of each other, lines; areas on top of each other and lines
# within the band of their extremes, against a number; lying bars, and lying parts that add up;
# points of which only the chosen ones are joined; a line with points under it, on logarithmic axes.
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

_PNG_SCALE = 2  # dots a point: sharp in print


@dataclass(frozen=True)
class ChartMark:
    """One value. `low` and `high` are its interval, None where there is none.

    In a waterfall they are where the part begins and ends.
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
    """What is to be seen. Names of axes have their units in them; words on x keep their order.

    `limit` is the name and the value of what must not be reached. A band reaches down to 0, unless
    it is not `from_zero`. `shaded` is the name of what went on for a while, and from where to where
    on x, against numbers.
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
        """List the series, in the order in which they come."""
        return list(dict.fromkeys(mark.series for mark in self.marks))

    def panels(self) -> list[str]:
        """List the panels, in the order in which they come."""
        return list(dict.fromkeys(mark.panel for mark in self.marks))


def check_form(path: Path) -> str:
    """Return the form that a file's name ends with.

    Raises:
        RequestError: it is unknown.
    """
    form = path.suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise RequestError(
            f"{path}: wanted a file name that ends in a form.{nearest(form, FORMATS)}"
        )
    return form


def save(chart: Chart, path: Path) -> Path:
    """Write a chart in the form that the file's name ends with; return the path.

    Raises:
        RequestError: the form is unknown, or the file cannot be written.
        MissingExtraError: vl-convert is not installed.
    """
    content = _render(chart, check_form(path))
    try:
        path.write_bytes(content)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise disk_full(error, str(path)) from error
        raise RequestError(f"cannot write {path}: {error.strerror}.") from error
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


def _page(title: str, drawn: dict[str, Any], script: str) -> str:
    # Within a script, `<` can only begin something that we did not write.
    data = json.dumps(drawn).replace("<", "\\u003c")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{html.escape(title)}'
        f'</title>\n<div id="chart"></div>\n<script type="module">\n{script}\n'
        f'vegaEmbed("#chart", {data}, {{"actions": false}});\n</script>\n</html>\n'
    )
