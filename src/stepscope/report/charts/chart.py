"""Charts in plain values: `vega_lite` draws them as PNG, SVG or PDF, `text_chart` as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from stepscope.errors import MissingExtraError, RequestError
from stepscope.files import cannot_write
from stepscope.stats.intervals import Interval

# `areas` are stacked and `bands` show lines with their extremes, both against numbers. `rows` and
# `waterfall` are horizontal. In a `scatter` only chosen points are joined. `roofline` has
# logarithmic axes.
Kind = Literal[
    "points", "bars", "stacked", "lines", "areas", "bands", "rows", "waterfall", "scatter",
    "roofline",
]  # fmt: skip

FORMATS = ("png", "svg", "pdf")
T = TypeVar("T")

_PNG_SCALE = 2  # pixels per point: sharp in print


@dataclass(frozen=True)
class ChartMark:
    """One value. `low` and `high` are its interval; in a waterfall, the ends of the part."""

    x: float | str
    y: float
    series: str = ""
    panel: str = ""
    low: float | None = None
    high: float | None = None
    chosen: bool = False

    def place(self) -> str:
        """Return its place on the x axis as a word."""
        return self.x if isinstance(self.x, str) else f"{self.x:g}"


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


def evenly(values: list[T], most: int) -> list[T]:
    """Return an even selection of at most `most` values, with the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(number * (len(values) - 1) / (most - 1))] for number in range(most)]


def with_interval(x: float | str, found: Interval, series: str = "", times: float = 1) -> ChartMark:
    """Return a mark with a median and its interval."""
    low, high = (None if end is None else end * times for end in (found.low, found.high))
    return ChartMark(x, found.median * times, series, low=low, high=high)


# --- Files


def check_form(path: Path) -> str:
    """Return the format that a file's suffix names."""
    form = path.suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise RequestError(f"{path}: wanted a file name ending in .png, .svg or .pdf.")
    return form


def save(chart: Chart, path: Path) -> Path:
    """Write a chart in the format of the file's suffix; return the path."""
    form = check_form(path)
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        raise MissingExtraError("drawing a chart", "vl_convert", "report") from error
    from stepscope.report.charts.vega_lite import VEGA_LITE, to_vega_lite

    options = {"scale": _PNG_SCALE} if form == "png" else {}
    draw = getattr(vl_convert, f"vegalite_to_{form}")
    content = draw(to_vega_lite(chart), vl_version=VEGA_LITE, **options)
    try:
        path.write_bytes(content.encode() if form == "svg" else content)
    except OSError as error:
        raise cannot_write(error, str(path), advice="") from error
    return path
