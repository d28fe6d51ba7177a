"""The roofline on the page, and how near the limit in words."""

from __future__ import annotations

from typing import Any

from stepscope.report.charts.chart import save
from stepscope.report.charts.run_charts import roofline_chart
from stepscope.report.html.chart_embed import as_figures, for_page, in_words
from stepscope.report.terminal.run_tables import about_limit

PEAK = {"flop_per_s": 100e9, "bytes_per_s": 10e9}


def phase(flop_per_byte: float, flop_per_s: float | None) -> dict[str, Any]:
    return {"flop_per_byte": flop_per_byte, "flop_per_s": flop_per_s, "share_of_roof": 0.5}


ROOFLINE = {"peak": PEAK, "phases": {"forward": phase(40.0, 50e9), "backward": phase(5.0, 25e9)}}


def test_the_roof_bends_at_the_ridge_and_reaches_beyond_both_phases():
    chart = roofline_chart(ROOFLINE)
    roof = [(mark.x, mark.y) for mark in chart.marks if mark.series == "roof"]
    assert roof == [(1.25, 12.5), (10.0, 100.0), (160.0, 100.0)]
    assert [(m.x, m.y, m.series) for m in chart.marks[3:]] == [
        (40.0, 50.0, "forward"),
        (5.0, 25.0, "backward"),
    ]
    assert "estimated" in chart.x
    assert "forward reaches 50.0 % of its roof" in chart.subtitle


def test_what_is_unknown_is_left_out():
    assert roofline_chart(None).marks == []
    assert roofline_chart({**ROOFLINE, "peak": None}).marks == []
    chart = roofline_chart({**ROOFLINE, "phases": {"forward": phase(40.0, None)}})
    assert {mark.series for mark in chart.marks} == {"roof"}


def test_it_is_drawn_on_logarithmic_axes_and_said_in_words(tmp_path):
    chart = roofline_chart(ROOFLINE)
    drawn = save(chart, tmp_path / "roof.svg").read_text()
    assert "roof" in drawn
    assert "NaN" not in drawn
    axes = for_page(chart)["layer"][0]["encoding"]
    assert axes["x"]["scale"]["type"] == axes["y"]["scale"]["type"] == "log"
    assert "forward: 50" in in_words(chart)
    assert as_figures(chart).rows


def test_a_line_says_what_was_achieved_or_how_to_get_a_peak():
    assert about_limit(41.3e9, {"share_of_peak": 0.4}) == (
        "achieved 41.3 GFLOP/s: 40.0 % of this machine's peak"
    )
    assert "113.0 % of the saved peak" in about_limit(41.3e9, {"share_of_peak": 1.13})
    absent = {"share_of_peak": "no peak: stepscope doctor --peaks"}
    assert about_limit(5e6, {"share_of_peak": None, "absent": absent}).endswith("doctor --peaks")
