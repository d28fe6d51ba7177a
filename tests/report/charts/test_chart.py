"""Charts: one description, every form; and the same as text on any terminal."""

from __future__ import annotations

import io
import sys
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from stepscope.errors import MissingExtraError, RequestError
from stepscope.report.charts.chart import FORMATS, Chart, ChartMark, Kind, save
from stepscope.report.charts.vega_lite import to_vega_lite
from stepscope.report.palette import PHASE_COLOURS, colours_of
from stepscope.report.terminal.text_chart import print_graph

EVIL = "</script><b onload=alert(1)>[red]&\"'{{x}}"

POINTS = Chart(
    "How many workers",
    "points",
    "workers",
    "samples/s",
    [
        ChartMark(0, 80, low=75, high=85),
        ChartMark(2, 150, low=145, high=158, chosen=True),
        ChartMark(8, 120),
    ],
)
EPOCH_PARTS = [
    ChartMark(str(epoch), 1 + epoch, part) for epoch in (1, 2) for part in ("loading", "training")
]
STACKED = Chart("Time of every epoch", "stacked", "epoch", "time, s", EPOCH_PARTS)
LOSSES = [
    ChartMark(epoch, 3.0 / epoch, series, panel)
    for panel in ("shared", EVIL)
    for series in ("SGD", EVIL)
    for epoch in (1, 2, 3)
]
LINES = Chart(EVIL, "lines", "epoch", "loss", LOSSES, subtitle=EVIL)
RATES = [
    ChartMark(name, 50, who, low=45, high=60) for name in ("one", "two") for who in ("cpu", "cuda")
]
BARS = Chart("Settings", "bars", "setting", "samples/s", RATES)
PHASES = [ChartMark(at, at * 0.5, part) for part in ("data", "forward") for at in (1, 50, 100)]
AREAS = Chart("Phases by step", "areas", "step", "time, s", PHASES)
SIZES = [ChartMark(time, 100 + time, low=90, high=180) for time in (0.5, 1.0, 1.5)]
BANDS = Chart("Memory", "bands", "time, s", "memory, MB", SIZES, limit=(EVIL, 200.0))
LAYERS = [ChartMark(name, 2, part) for name in ("conv1", EVIL) for part in ("forward", "backward")]
ROWS = Chart("Time by layer", "rows", "layer", "time, ms", LAYERS)
ITEMS = [
    ChartMark("parameters", 40, low=0, high=40),
    ChartMark("activations", 60, low=40, high=100),
    ChartMark("total", 100, low=0, high=100, chosen=True),
]
WATERFALL = Chart("Bill", "waterfall", "part", "memory, MB", ITEMS, limit=("limit", 200.0))
ALL = (POINTS, STACKED, LINES, BARS, AREAS, BANDS, ROWS, WATERFALL)

BEGINNINGS = {"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF"}


def text_of(chart: Chart, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)  # strict: what cannot be said is an error
    print_graph(Console(file=file, width=width), chart)
    file.flush()
    return raw.getvalue().decode(encoding)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chart", ALL, ids=lambda chart: chart.kind)
@pytest.mark.parametrize("form", FORMATS)
def test_every_kind_of_chart_is_drawn_in_every_form(tmp_path, chart, form):
    content = save(chart, tmp_path / f"chart.{form}").read_bytes()
    assert content.startswith(BEGINNINGS[form])


@pytest.mark.parametrize("kind", ["points", "bars", "stacked"])
def test_numbers_among_words_are_words_in_their_order(kind):
    mixed = [
        ChartMark(4, 1),
        ChartMark("2, threads 1", 3, low=2, high=4, chosen=True),
        ChartMark(0, 2),
    ]
    described = to_vega_lite(Chart("t", kind, "x", "y", mixed))
    assert described["layer"][0]["encoding"]["x"]["sort"] == ["4", "2, threads 1", "0"]


def test_a_name_is_never_markup(tmp_path):
    assert "[red]" in text_of(LINES)
    drawn = save(LINES, tmp_path / "drawn.svg").read_text(encoding="utf-8")
    assert "<b onload" not in drawn
    assert "<script" not in drawn
    assert "&lt;b onload" in drawn


def test_a_phase_has_one_colour_whatever_it_is_shown_with():
    scale = to_vega_lite(STACKED)["layer"][0]["encoding"]["color"]["scale"]
    colours = dict(zip(scale["domain"], scale["range"], strict=True))
    assert colours == {name: PHASE_COLOURS[name] for name in ("loading", "training")}
    assert colours_of(["other", "data"])["data"] == PHASE_COLOURS["data"] == "#E69F00"


def test_phases_can_be_told_apart_and_few_series_as_well():
    six = ("data", "transfer", "forward", "backward", "optimizer", "other")
    assert len({*colours_of(six).values()}) == 6
    assert len({*colours_of("abcdefgh").values()}) == 8


def test_an_unknown_form_and_a_folder_that_is_not_there_are_refused(tmp_path):
    with pytest.raises(RequestError, match="png"):
        save(POINTS, tmp_path / "chart.pgn")
    with pytest.raises(RequestError, match="cannot write"):
        save(POINTS, tmp_path / "nowhere" / "chart.svg")


def test_without_the_extra_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingExtraError, match=r"stepscope\[report\]"):
        save(POINTS, tmp_path / "chart.png")


# --- text -----------------------------------------------------------------------------------------


def test_an_interval_is_drawn_around_its_middle_and_the_chosen_one_is_named():
    zero, two, eight = text_of(POINTS).splitlines()[1:]
    assert zero.index("├") < zero.index("●") < zero.index("┤")
    assert two.endswith("← chosen")
    assert "├" not in eight
    assert "██" in eight


@pytest.mark.parametrize("chart", ALL, ids=lambda chart: chart.kind)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_at_80_columns_no_line_is_longer_whatever_the_encoding(chart, encoding):
    for line in text_of(chart, encoding=encoding).splitlines()[1:]:
        assert len(line) <= 80


def test_the_parts_of_a_bar_are_as_long_as_their_shares_and_named_below():
    first, second, legend = text_of(STACKED).splitlines()[1:]
    assert second.count("█") == pytest.approx(second.count("▓"), abs=1)
    assert second.count("█") > first.count("█")
    assert legend == "█ loading   ▓ training"


def test_a_chart_without_marks_is_a_title_alone():
    for kind in get_args(Kind):
        assert text_of(Chart("empty", kind, "x", "y", [])).startswith("empty: y by x\n")


FINITE = st.floats(0, 1e12, allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.tuples(FINITE, FINITE, FINITE), min_size=1, max_size=8),
    kind=st.sampled_from(get_args(Kind)),
    width=st.integers(20, 200),
)
def test_any_values_are_drawn_at_any_width(values, kind, width):
    marks = [
        ChartMark(str(number), middle, low=low, high=high)
        for number, (low, middle, high) in enumerate(map(sorted, values))
    ]
    assert len(text_of(Chart("t", kind, "x", "y", marks), width).splitlines()) >= 2
