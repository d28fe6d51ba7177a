"""How each kind of chart is drawn, in Altair's words. Needs the extra `report`."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import altair as alt

from stepscope.report.charts import Chart, colours_of

# vl-convert brings several versions of Vega-Lite, and names them by their first two numbers.
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])

_WIDTH, _PANEL_WIDTH, _HEIGHT = 460, 290, 280
_INK, _GRID, _CHOSEN = "#222222", "#E3E3E3", "#D55E00"
_MOST_TICKS = 12
_NO_SERIES = [""]

_CONFIG = {
    "font": "Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": _INK,
        "titleColor": _INK,
        "gridColor": _GRID,
        "domainColor": _INK,
        "tickColor": _INK,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "legend": {"labelFontSize": 11, "labelColor": _INK, "symbolStrokeWidth": 2, "labelLimit": 240},
    "header": {"labelFontSize": 12, "labelColor": _INK},
    "title": {
        "fontSize": 14,
        "color": _INK,
        "subtitleColor": _INK,
        "subtitleFontSize": 11,
        "offset": 12,
    },
}


def to_vega_lite(chart: Chart) -> dict[str, Any]:
    """Describe a chart in Vega-Lite's words."""
    chart = _consistent(chart)
    base = alt.Chart(alt.InlineData(values=[asdict(mark) for mark in chart.marks]))
    draw = {"points": _points, "bars": _bars, "stacked": _stacked, "lines": _lines}[chart.kind]
    drawn: Any = alt.layer(*draw(base, chart))
    if len(chart.panels()) > 1:
        column = alt.Column("panel:N", title=None, sort=chart.panels())
        drawn = drawn.properties(width=_PANEL_WIDTH, height=_HEIGHT).facet(column=column)
    else:
        drawn = drawn.properties(width=_WIDTH, height=_HEIGHT)
    under: dict[str, Any] = {"subtitle": chart.subtitle} if chart.subtitle else {}
    title = alt.TitleParams(chart.title, anchor="start", **under)
    described: dict[str, Any] = drawn.properties(title=title, background="white").to_dict()
    # As plain values: a theme of the person's own must not change what a paper shows.
    return {**described, "config": _CONFIG}


def _consistent(chart: Chart) -> Chart:
    """Take numbers among words for words: an axis has the one or the other."""
    if not any(isinstance(mark.x, str) for mark in chart.marks):
        return chart
    words = [mark.x if isinstance(mark.x, str) else f"{mark.x:g}" for mark in chart.marks]
    marks = [replace(mark, x=word) for mark, word in zip(chart.marks, words, strict=True)]
    return replace(chart, marks=marks)


def _points(base: alt.Chart, chart: Chart) -> list[Any]:
    """Draw points with their intervals against a number; the chosen one stands out."""
    x = _words(chart) if any(isinstance(mark.x, str) for mark in chart.marks) else _numbers(chart)
    y = alt.Y("y:Q", title=chart.y, scale=alt.Scale(zero=True))
    placed = base.encode(x=x, color=_colour(chart))
    layers: list[Any] = [placed.mark_line(strokeWidth=1, opacity=0.45).encode(y=y)]
    layers += [
        *_intervals(placed, chart),
        placed.mark_point(size=60, filled=True, opacity=1).encode(y=y),
    ]
    chosen = base.transform_filter("datum.chosen").encode(x=x, y=y)
    layers.append(chosen.mark_point(size=260, color=_CHOSEN, strokeWidth=2))
    layers.append(
        chosen.mark_text(dy=26, fontSize=11, fontWeight="bold", color=_CHOSEN).encode(
            text=alt.value("chosen")
        )
    )
    return layers


def _bars(base: alt.Chart, chart: Chart) -> list[Any]:
    """Draw bars side by side, with their intervals."""
    many = chart.series() != _NO_SERIES
    offset: dict[str, Any] = (
        {"xOffset": alt.XOffset("series:N", sort=chart.series())} if many else {}
    )
    placed = base.encode(x=_words(chart), **offset)
    bars = placed.mark_bar().encode(y=alt.Y("y:Q", title=chart.y), color=_colour(chart))
    return [bars, *_intervals(placed, chart, color=_INK)]


def _stacked(base: alt.Chart, chart: Chart) -> list[Any]:
    """Draw one bar for each x, its parts on top of each other, the first at the bottom."""
    order = [{"part": number, "series": name} for number, name in enumerate(chart.series())]
    looked_up = alt.LookupData(data=alt.InlineData(values=order), key="series", fields=["part"])
    placed = base.transform_lookup(lookup="series", from_=looked_up)
    return [
        placed.mark_bar().encode(
            x=_words(chart),
            y=alt.Y("y:Q", title=chart.y, stack="zero"),
            color=_colour(chart),
            order=alt.Order("part:Q"),
        )
    ]


def _lines(base: alt.Chart, chart: Chart) -> list[Any]:
    """Draw a line for each series; a shape for each as well, for those who print without colour."""
    whole = all(float(mark.x).is_integer() for mark in chart.marks)
    x = _numbers(chart) if whole else alt.X("x:Q", title=chart.x, axis=alt.Axis(grid=False))
    placed = base.encode(
        x=x,
        y=alt.Y("y:Q", title=chart.y, scale=alt.Scale(zero=False)),
        color=_colour(chart),
    )
    points = placed.mark_point(size=45, filled=True, opacity=1)
    if chart.series() != _NO_SERIES:
        points = points.encode(
            shape=alt.Shape("series:N", title=None, sort=chart.series(), scale=_scale(chart))
        )
    return [placed.mark_line(strokeWidth=1.8), points]


def _intervals(placed: Any, chart: Chart, **look: Any) -> list[Any]:
    known = placed.transform_filter("isValid(datum.low) && isValid(datum.high)")
    if all(mark.low is None for mark in chart.marks):
        return []
    ends = {"y": alt.Y("low:Q", title=chart.y), "y2": alt.Y2("high:Q")}
    caps = [
        known.mark_tick(size=9, thickness=1.3, orient="horizontal", **look).encode(
            y=alt.Y(f"{end}:Q", title=chart.y)
        )
        for end in ("low", "high")
    ]
    return [known.mark_rule(strokeWidth=1.3, **look).encode(**ends), *caps]


def _numbers(chart: Chart) -> alt.X:
    """Mark the values themselves on the axis, where there are few."""
    values = sorted({float(mark.x) for mark in chart.marks})
    ticks: dict[str, Any] = {"values": values} if len(values) <= _MOST_TICKS else {}
    axis = alt.Axis(format="~", grid=False, **ticks)
    scale = alt.Scale(zero=False, nice=False, padding=12)
    return alt.X("x:Q", title=chart.x, axis=axis, scale=scale)


def _words(chart: Chart) -> alt.X:
    order: list[Any] = list(dict.fromkeys(mark.x for mark in chart.marks))
    return alt.X("x:N", title=chart.x, sort=order, axis=alt.Axis(labelAngle=_angle(order)))


def _angle(words: list[Any]) -> int:
    """Turn the words under an axis where they would run into each other."""
    return -35 if sum(len(str(word)) + 1 for word in words) > _WIDTH / 7 else 0


def _colour(chart: Chart) -> Any:
    if chart.series() == _NO_SERIES:
        return alt.value(colours_of(_NO_SERIES)[""])
    colours = colours_of(chart.series())
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color("series:N", title=None, sort=chart.series(), scale=scale)


def _scale(chart: Chart) -> alt.Scale:
    return alt.Scale(domain=chart.series())
