"""How each kind of chart is drawn, as a Vega-Lite specification in plain values."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from stepscope.report.charts.chart import Chart, Kind
from stepscope.report.palette import CHOSEN, INK, SHADE, colours_of

# One of the versions that vl-convert includes, by its name there.
VEGA_LITE = "5.20"

WIDTH, _PANEL_WIDTH, _HEIGHT, _ROW_HEIGHT = 460, 290, 280, 22
_MOST_TICKS = 12
_NO_SERIES = [""]
_DOT = {"type": "point", "size": 60, "filled": True, "opacity": 1}
_ONLY_CHOSEN = {"transform": [{"filter": "datum.chosen"}]}
_HAS_INTERVAL = {"filter": "isValid(datum.low) && isValid(datum.high)"}

CONFIG = {
    "font": "Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"},
    "legend": {"labelFontSize": 11, "symbolStrokeWidth": 2, "symbolOpacity": 1, "labelLimit": 240},
    "title": {"fontSize": 14, "subtitleFontSize": 11, "offset": 12},
}

# A Vega-Lite specification, or a part of one.
Drawn = dict[str, Any]


def to_vega_lite(chart: Chart) -> Drawn:
    """Return the Vega-Lite specification of a chart."""
    chart = _consistent(chart)
    layers = _shades(chart) + _LAYERS[chart.kind](chart) + _limit(chart)
    data = {"values": [asdict(mark) for mark in chart.marks]}
    height: Any = {"step": _ROW_HEIGHT} if chart.kind in LYING else _HEIGHT
    body: Drawn = {"layer": layers, "height": height}
    if len(chart.panels()) > 1:
        column = {"field": "panel", "type": "nominal", "title": None, "sort": chart.panels()}
        body = {"facet": {"column": column}, "spec": {**body, "width": _PANEL_WIDTH}}
    else:
        body["width"] = WIDTH
    title = {"text": chart.title, "anchor": "start"}
    if chart.subtitle:
        title["subtitle"] = chart.subtitle
    return {
        "$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE.partition('.')[0]}.json",
        "description": f"{chart.title}: {chart.y} by {chart.x}",
        "title": title,
        "background": "white",
        "data": data,
        **body,
        "config": CONFIG,
    }


def _consistent(chart: Chart) -> Chart:
    """Convert numbers on an axis of words to words."""
    if not any(isinstance(mark.x, str) for mark in chart.marks):
        return chart
    return replace(chart, marks=[replace(mark, x=mark.place()) for mark in chart.marks])


# --- Kinds of charts


def _points(chart: Chart) -> list[Drawn]:
    """Draw points with their intervals, and highlight the chosen one."""
    words = isinstance(chart.marks[0].x, str) if chart.marks else False
    x, y = _words(chart) if words else _numbers(chart), _y(chart, zero=True)
    placed = {"x": x, "color": _colour(chart)}
    layers = [
        _layer({"type": "line", "strokeWidth": 1, "opacity": 0.45}, **placed, y=y),
        *_intervals(chart, placed),
        _layer(_DOT, **placed, y=y),
    ]
    if any(mark.chosen for mark in chart.marks):
        ring = {"type": "point", "size": 260, "color": CHOSEN, "strokeWidth": 2}
        word = {"type": "text", "dy": 26, "fontSize": 11, "fontWeight": "bold", "color": CHOSEN}
        chosen = {"x": x, "y": y, "text": {"value": "chosen"}}
        layers.append({**_ONLY_CHOSEN, "mark": ring, "encoding": {"x": x, "y": y}})
        layers.append({**_ONLY_CHOSEN, "mark": word, "encoding": chosen})
    return layers


def _bars(chart: Chart) -> list[Drawn]:
    """Draw bars side by side, with their intervals."""
    placed: Drawn = {"x": _words(chart)}
    if chart.series() != _NO_SERIES:
        placed["xOffset"] = _series(chart)
    bars = _layer("bar", **placed, y=_y(chart), color=_colour(chart))
    return [bars, *_intervals(chart, placed, color=INK)]


def _stack(chart: Chart) -> list[Drawn]:
    """Draw stacked bars or areas: the first part at the bottom, in rows on the left."""
    place = _quantities(chart) if chart.kind == "areas" else _words(chart)
    length = {**_y(chart), "stack": "zero"}
    x, y = (length, place) if chart.kind == "rows" else (place, length)
    mark = "area" if chart.kind == "areas" else "bar"
    order = {"field": "part", "type": "quantitative"}
    number = f"indexof({json.dumps(chart.series())}, datum.series)"
    layer = _layer(mark, x=x, y=y, color=_colour(chart), order=order)
    return [{**layer, "transform": [{"calculate": number, "as": "part"}]}]


def _lines(chart: Chart) -> list[Drawn]:
    """Draw a line with points for each series."""
    whole = all(float(mark.x).is_integer() for mark in chart.marks)
    placed = {
        "x": _numbers(chart) if whole else _quantities(chart),
        "y": _y(chart, zero=False),
        "color": _colour(chart),
    }
    point = _layer({**_DOT, "size": 45}, **placed, **_shape(chart))
    return [_layer({"type": "line", "strokeWidth": 1.8}, **placed), point]


def _bands(chart: Chart) -> list[Drawn]:
    """Draw a line in the band of its extremes, for each series."""
    placed = {"x": _quantities(chart), "color": _colour(chart)}
    y = _y(chart, zero=chart.from_zero)
    extremes = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    band = _layer({"type": "area", "opacity": 0.22, "interpolate": "step"}, **placed, **extremes)
    line = _layer({"type": "line", "strokeWidth": 1.6}, **placed, y=y)
    return [{**band, "transform": [_HAS_INTERVAL]}, line]


def _waterfall(chart: Chart) -> list[Drawn]:
    """Draw horizontal parts that add up; the chosen one is their sum."""
    ends = {"x": {**_y(chart), "field": "low"}, "x2": {"field": "high"}}
    colour = {"condition": {"test": "datum.chosen", "value": INK}, **_colour(chart)}
    return [_layer("bar", y=_words(chart), **ends, color=colour)]


def _scatter(chart: Chart) -> list[Drawn]:
    """Draw points; the chosen ones have a ring, and a line joins them."""
    quantities = {**_quantities(chart), "scale": {"zero": False}}
    placed = {"x": quantities, "y": _y(chart, zero=False)}
    point = _layer(_DOT, **placed, color=_colour(chart), **_shape(chart))
    line = {"type": "line", "strokeWidth": 1, "color": CHOSEN, "opacity": 0.6}
    ring = {"type": "point", "size": 200, "color": CHOSEN, "strokeWidth": 1.6}
    marked = [{**_ONLY_CHOSEN, "mark": mark, "encoding": placed} for mark in (line, ring)]
    return [*marked, point]


def _roofline(chart: Chart) -> list[Drawn]:
    """Draw the first series as a line, the others as points, on logarithmic axes."""
    log = {"type": "log", "nice": False, "padding": 12}
    axis = {"grid": True, "format": "~g"}
    placed = {
        "x": {**_quantities(chart), "scale": log, "axis": axis},
        "y": {**_y(chart), "scale": log, "axis": axis},
        "color": _colour(chart),
    }
    is_roof = f"datum.series === {json.dumps(chart.series()[0])}"
    roof = _layer({"type": "line", "strokeWidth": 1.8}, **placed)
    point = _layer({**_DOT, "size": 90}, **placed)
    return [
        {**roof, "transform": [{"filter": is_roof}]},
        {**point, "transform": [{"filter": f"!({is_roof})"}]},
    ]


_LAYERS = {
    "points": _points,
    "bars": _bars,
    "lines": _lines,
    "bands": _bands,
    "waterfall": _waterfall,
    "scatter": _scatter,
    "roofline": _roofline,
    **dict.fromkeys(("stacked", "areas", "rows"), _stack),
}
LYING: tuple[Kind, ...] = ("rows", "waterfall")


# --- Encodings and layers


def _layer(mark: str | Drawn, **encoding: Any) -> Drawn:
    described = {"type": mark} if isinstance(mark, str) else mark
    return {"mark": {**described, "tooltip": True}, "encoding": encoding}


def _intervals(chart: Chart, placed: Drawn, **look: Any) -> list[Drawn]:
    if all(mark.low is None for mark in chart.marks):
        return []
    bar = {"type": "errorbar", "ticks": True, "thickness": 1.3, **look}
    ends = {"y": {**_y(chart), "field": "low"}, "y2": {"field": "high"}}
    return [{"transform": [_HAS_INTERVAL], "mark": bar, "encoding": {**placed, **ends}}]


def _limit(chart: Chart) -> list[Drawn]:
    """Draw a line at a limit, with its name."""
    if chart.limit is None:
        return []
    name, value = chart.limit
    at = {"y": {"datum": value, "type": "quantitative", "title": chart.y}}
    rule = {"type": "rule", "strokeDash": [5, 4], "color": CHOSEN, "strokeWidth": 1.3}
    text = {"type": "text", "color": CHOSEN, "fontSize": 11, "align": "left", "dy": -6, "dx": 4}
    named = {**at, "x": {"value": 0}, "text": {"value": name}}
    once: Drawn = {"values": [{}]}  # with the chart's data there would be one for each value
    return [
        {"data": once, "mark": mark, "encoding": encoding}
        for mark, encoding in ((rule, at), (text, named))
    ]


def _shades(chart: Chart) -> list[Drawn]:
    """Draw shaded ranges of x behind everything, named in the legend."""
    if chart.shaded is None:
        return []
    name, stretches = chart.shaded
    edges = {"values": [{"from": begin, "to": end} for begin, end in stretches]}
    scale = {"domain": [name], "range": [SHADE]}
    encoding = {
        "x": {**_quantities(chart), "field": "from"},
        "x2": {"field": "to"},
        "fill": {"datum": name, "type": "nominal", "title": None, "scale": scale},
    }
    return [{"data": edges, "mark": {"type": "rect", "opacity": 0.3}, "encoding": encoding}]


def _y(chart: Chart, *, zero: bool | None = None) -> Drawn:
    scale = {} if zero is None else {"scale": {"zero": zero}}
    return {"field": "y", "type": "quantitative", "title": chart.y, **scale}


def _quantities(chart: Chart) -> Drawn:
    return {"field": "x", "type": "quantitative", "title": chart.x, "axis": {"grid": False}}


def _numbers(chart: Chart) -> Drawn:
    """Label the values themselves on the axis, if there are few."""
    values = sorted({float(mark.x) for mark in chart.marks})
    ticks = {"values": values} if len(values) <= _MOST_TICKS else {}
    axis = {"format": ".12~g", "grid": False, **ticks}
    scale = {"zero": False, "nice": False, "padding": 12}
    return {**_quantities(chart), "axis": axis, "scale": scale}


def _words(chart: Chart) -> Drawn:
    order = list(dict.fromkeys(str(mark.x) for mark in chart.marks))
    crowded = sum(len(word) + 1 for word in order) > WIDTH / 7
    axis = {"labelLimit": 260} if chart.kind in LYING else {"labelAngle": -35 if crowded else 0}
    return {"field": "x", "type": "nominal", "title": chart.x, "sort": order, "axis": axis}


def _colour(chart: Chart) -> Drawn:
    colours = colours_of(chart.series())
    if chart.series() == _NO_SERIES:
        return {"value": colours[""]}
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {**_series(chart), "scale": scale}


def _shape(chart: Chart) -> Drawn:
    """Give each series a shape, for prints without colour."""
    if chart.series() == _NO_SERIES:
        return {}
    return {"shape": {**_series(chart), "scale": {"domain": chart.series()}}}


def _series(chart: Chart) -> Drawn:
    return {"field": "series", "type": "nominal", "title": None, "sort": chart.series()}
