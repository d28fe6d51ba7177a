"""Steps in a time of throttling: marked, counted, drawn, and held against the others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from written_tables import step, write_tables

from stepscope.analyze.comparison import compare
from stepscope.analyze.comparison_sides import read_sides
from stepscope.analyze.run_summary import Measured, summarize
from stepscope.analyze.throttled_time import slowdown, throttled_ranges
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.records.throttled_steps import (
    ThrottledTime,
    mark_throttled,
    throttled_times,
)
from stepscope.report.charts.run_charts import sections_of
from stepscope.report.charts.vega_lite import to_vega_lite
from stepscope.report.html.chart_embed import in_words
from stepscope.report.html.run_page import document_of_run
from stepscope.report.terminal.run_tables import print_run

Event = Mapping[str, Any]
Record = Callable[..., Run]
WATCHED = {"event": "throttling_watched", "time_s": 0.1, "what": ["temperature", "clock"]}
BLIND = {**WATCHED, "what": []}


def began(time_s: float, what: str = "clock") -> Event:
    return {"event": "throttling", "time_s": time_s, "what": what, "from": 1479.0, "to": 921.6}


def ended(time_s: float, what: str = "clock") -> Event:
    return {"event": "throttling_ended", "time_s": time_s, "what": what, "lasted_s": 1.0}


def seconds(count: int, slow: Sequence[int] = (), epoch_of: int = 20) -> list[dict[str, Any]]:
    """Give steps that begin a second apart, from 0; the slow ones take twice as long as others."""
    return [
        step(
            1 + row % epoch_of,
            epoch=1 + row // epoch_of,
            start_s=float(row),
            step_s=0.8 if row in slow else 0.4,
        )
        for row in range(count)
    ]


@pytest.fixture
def recorded(tmp_path: Path) -> Record:
    def record(events: Sequence[Event], steps: Any, name: str = "run", **info: Any) -> Run:
        run = write_tables(tmp_path / name, steps, events=events, **info)
        return run.with_summary(summarize(run, Measured()))

    return record


RESUMED = {"event": "resume", "time_s": 5.0}


# --- marks ----------------------------------------------------------------------------------------


MOMENTS = st.floats(0.0, 20.0)
KINDS = st.sampled_from(["clock", "temperature"])
HAPPENED = st.lists(
    st.one_of(
        st.builds(began, MOMENTS, KINDS),
        st.builds(ended, MOMENTS, KINDS),
        st.builds(lambda time_s: {"event": "resume", "time_s": time_s}, MOMENTS),
    ),
    max_size=12,
)


@given(HAPPENED, st.lists(st.tuples(MOMENTS, st.floats(0.01, 3.0)), max_size=12))
def test_whatever_happened_in_whatever_order_a_step_is_marked_by_the_times_it_meets(
    events: list[Event], steps: list[tuple[float, float]]
) -> None:
    held = throttled_times(events)
    assert [each.from_s for each in held] == sorted(each.from_s for each in held)
    marked = mark_throttled([start for start, _ in steps], [took for _, took in steps], held)
    assert marked == [
        any(start < max(each.from_s, each.to_s) and start + took > each.from_s for each in held)
        for start, took in steps
    ]


@given(st.lists(st.tuples(st.booleans() | st.none(), st.integers(1, 3)), max_size=40))
def test_ranges_are_exactly_the_marked_rows_and_none_crosses_an_epoch(
    rows: list[tuple[bool | None, int]],
) -> None:
    run = Run(Path(), {})
    epochs = [epoch for _, epoch in rows]
    run.__dict__["steps"] = Table({"epoch": epochs})
    run.__dict__["throttled"] = [mark for mark, _ in rows]
    ranges = throttled_ranges(run)
    within = [row for first, last in ranges for row in range(first, last + 1)]
    assert within == [row for row, (mark, _) in enumerate(rows) if mark]
    assert all(len(set(epochs[first : last + 1])) == 1 for first, last in ranges)


@pytest.mark.parametrize(
    ("events", "times"),
    [
        ([began(3.5)], [(3.5, math.inf)]),
        ([began(3.5), RESUMED, began(8.0), ended(9.0)], [(3.5, 5.0), (8.0, 9.0)]),
        ([RESUMED, began(3.5), began(8.0, "temperature")], [(3.5, 5.0), (8.0, math.inf)]),
    ],
)
def test_a_time_without_an_end_lasts_until_the_run_is_resumed_or_over(
    events: list[Event], times: list[tuple[float, float]]
) -> None:
    assert [(each.from_s, each.to_s) for each in throttled_times(events)] == times


def test_a_step_of_which_nobody_knows_when_it_was_is_not_marked_either_way() -> None:
    times = [ThrottledTime(began(0.0), 9.0)]
    assert mark_throttled([None, 1.0], [1.0, None], times) == [None, None]


# --- the summary ----------------------------------------------------------------------------------


def test_a_summary_says_which_steps_were_touched_and_what_that_cost(recorded: Record) -> None:
    slow = range(35, 55)
    run = recorded([WATCHED, began(35.0), ended(54.9)], seconds(80, slow), spec={"drop_epochs": 0})
    found = run.summary["throttling"]
    cost = found.pop("slowdown")
    assert found == {
        "watched": ["temperature", "clock"],
        "steps": 20,
        "share_of_steps": 0.25,
        "share_of_time": pytest.approx(16 / 40),
        "ranges": [
            {"epoch": 2, "first_step": 16, "last_step": 20},
            {"epoch": 3, "first_step": 1, "last_step": 15},
        ],
        "more_ranges": 0,
    }
    assert (cost["median_s"], cost["others_median_s"]) == (0.8, 0.4)
    assert (cost["low"], cost["ratio"], cost["high"]) == pytest.approx((2 / 1.005, 2.0, 2.01))
    assert "throttling" not in run.summary["absent"]


def test_watched_and_nothing_happened_is_none_and_not_unknown(recorded: Record) -> None:
    found = recorded([WATCHED], seconds(5)).summary["throttling"]
    assert (found["steps"], found["share_of_time"], found["ranges"]) == (0, 0.0, [])
    assert found["slowdown"] is None


@pytest.mark.parametrize(
    ("events", "steps", "reason"),
    [
        ([], 5, "not watched"),
        ([BLIND], 5, "no CPU clock"),
        ([WATCHED], 0, "no step was finished"),
    ],
)
def test_what_could_not_be_watched_is_unknown_with_its_reason(
    events: list[Event], steps: int, reason: str, recorded: Record
) -> None:
    run = recorded(events, seconds(steps))
    assert run.summary["throttling"] is None
    assert reason in run.summary["absent"]["throttling"]
    assert set(run.throttled) <= {None}


def test_many_ranges_are_counted_and_only_the_first_are_listed(recorded: Record) -> None:
    times = [each for at in range(0, 300, 2) for each in (began(at), ended(at + 0.3))]
    found = recorded([WATCHED, *times], seconds(300, epoch_of=300)).summary["throttling"]
    assert (found["steps"], len(found["ranges"]), found["more_ranges"]) == (150, 100, 50)


def test_few_steps_have_a_ratio_and_no_interval_and_one_side_has_none() -> None:
    few = slowdown([0.2, 0.1, 0.1, 0.1], [True, False, False, None])
    assert (few["ratio"], few["low"], few["high"]) == (pytest.approx(2.0), None, None)
    assert slowdown([0.2, 0.1], [True, True]) is None
    assert slowdown([0.0, 0.1], [True, False]) is None  # a step of no time is none
    assert slowdown([], []) is None


def test_equal_steps_are_seldom_called_slower() -> None:
    """By blocks, steps that wander together are not taken for many observations."""
    chance, called = random.Random(7), 0
    for _ in range(200):
        drift, times = 0.0, []
        for _ in range(400):
            drift = 0.9 * drift + chance.gauss(0, 0.02)
            times.append(0.1 * (1 + drift) ** 2)
        found = slowdown(times, [100 <= row < 300 for row in range(400)])
        called += not found["low"] <= 1 <= found["high"]
    assert called / 200 < 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


# --- where it is shown ----------------------------------------------------------------------------


def test_frames_and_parquet_say_of_each_step_whether_it_was_throttled(recorded: Record) -> None:
    run = recorded([WATCHED, began(1.2), ended(1.3)], seconds(3))
    assert run.steps.to_polars()["throttled"].to_list() == [False, True, False]
    assert run.steps.to_pandas()["throttled"].to_list() == [False, True, False]
    unknown = recorded([BLIND], seconds(2), name="blind").steps
    assert unknown.to_polars().schema["throttled"] == polars.Boolean
    assert unknown.to_polars()["throttled"].to_list() == [None, None]
    assert str(unknown.to_pandas()["throttled"].dtype) == "boolean"
    assert "throttled" not in next(unknown.rows()), "the table is the file's"


def charts_of(run: Run) -> dict[str, Any]:
    return {chart.title: chart for section in sections_of(run) for chart in section.charts}


def test_charts_of_steps_shade_what_was_throttled_and_say_what_the_shade_is(
    recorded: Record,
) -> None:
    run = recorded([WATCHED, began(18.2), ended(21.3), began(35.0)], seconds(40))
    charts = charts_of(run)
    for title in ("Phases by step", "Time of every step"):
        assert charts[title].shaded == ("throttled", [(18.5, 22.5), (35.5, 40.0)])
        assert "throttled" in charts[title].subtitle
        shade = to_vega_lite(charts[title])["layer"][0]
        assert shade["mark"]["type"] == "rect"
        assert shade["encoding"]["fill"]["datum"] == "throttled"
        assert "Shaded (throttled): 18.5 to 22.5" in in_words(charts[title])
    assert charts["Loss by step"].shaded is None
    free = charts_of(recorded([WATCHED, began(99.0)], seconds(40)))["Time of every step"]
    assert (free.shaded, free.subtitle) == (None, "")


def test_shades_that_lie_within_a_point_are_one(recorded: Record) -> None:
    times = [each for at in range(0, 40, 2) for each in (began(at), ended(at + 0.3))]
    chart = charts_of(recorded([WATCHED, *times], seconds(1200)))["Time of every step"]
    assert chart.shaded == ("throttled", [(1.0, 39.5)])


LINE = "20 steps, 40.0 % of the time, take 2.00 times as long as the others (95 %: "


@pytest.mark.parametrize(
    ("events", "printed", "on_page"),
    [
        ([began(35.0), ended(54.9)], f"throttled: {LINE}", LINE),
        ([], None, "none detected (temperature, clock)"),
    ],
)
def test_the_output_has_a_line_where_it_was_throttled_and_the_page_in_any_case(
    events: list[Event], printed: str | None, on_page: str, recorded: Record
) -> None:
    steps = seconds(80, range(35, 55))
    run = recorded([WATCHED, *events], steps, spec={"drop_epochs": 0})
    console = Console(record=True, width=200)
    print_run(console, run)
    text = console.export_text()
    assert printed in text if printed else "throttl" not in text
    figures = [row for table in document_of_run(run, []).figures for row in table.rows]
    assert any(row[0] == "throttling" and row[1].startswith(on_page) for row in figures)


# --- compared -------------------------------------------------------------------------------------


def warnings_on(baseline: Run, other: Run) -> list[str]:
    (compared,) = compare(read_sides([str(baseline.path), str(other.path)]))["others"]
    return compared["warnings"]


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([WATCHED], "throttled in 1 of 1 runs, for up to 50.0 % of the time, the baseline in "
         "none of 1 runs"),
        ([], "the baseline in runs without a record of it"),
    ],
)  # fmt: skip
def test_a_run_that_was_throttled_beside_one_that_was_not_is_a_warning(
    events: list[Event], told: str, recorded: Record
) -> None:
    free = recorded(events, seconds(10), name="free")
    held = recorded([WATCHED, began(5.0)], seconds(10), name="held")
    assert sum(told in warning for warning in warnings_on(free, held)) == 1
    assert any("the baseline in 1 of 1 runs" in warning for warning in warnings_on(held, free))


@pytest.mark.parametrize("events", [[], [WATCHED], [BLIND], [WATCHED, began(5.0)]])
def test_runs_that_were_alike_in_it_are_none(events: list[Event], recorded: Record) -> None:
    alike = [recorded(events, seconds(10), name=name) for name in ("one", "other")]
    assert not any("throttled" in warning for warning in warnings_on(*alike))
