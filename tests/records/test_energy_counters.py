"""What two readings of a counter mean, and which domains may be added."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stepscope.records.energy_readings import grown_j, widest
from stepscope.records.types import EVERYTHING

RANGE_J = 262_143.0
steps_j = st.lists(st.integers(0, 60_000), min_size=1, max_size=30)


@given(st.integers(0, int(RANGE_J) - 1), steps_j)
def test_a_counter_is_followed_through_any_number_of_wraps(first: int, steps: list[int]) -> None:
    total, readings = first, [first]
    for step in steps:
        total += step
        readings.append(total % int(RANGE_J))
    grown = [grown_j(before, after, 10.0, RANGE_J) for before, after in pairwise(readings)]
    assert grown == steps


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.01, 100), st.none() | st.floats(1, 1e6))
def test_what_a_counter_counted_is_never_less_than_nothing(
    before: float, after: float, took_s: float, range_j: float | None
) -> None:
    grown = grown_j(before, after, took_s, range_j)
    assert grown is None or 0 <= grown <= 20_000 * took_s


def test_a_counter_that_begins_anew_or_leaps_is_no_reading_and_no_wrap() -> None:
    assert grown_j(1000.0, 3.0, 0.1, RANGE_J) is None
    assert grown_j(1000.0, 3.0, 0.1) is None
    assert grown_j(10.0, 1e9, 0.1) is None


def test_parts_are_not_added_to_their_whole() -> None:
    package = {"package-0": ["package-0 core"], "package-0 core": [], "package-0 dram": []}
    assert widest(package) == ["package-0", "package-0 dram"]
    assert widest({**package, "psys": [EVERYTHING]}) == ["psys"]
    assert widest({"gpu0": [], **package}) == ["gpu0", "package-0", "package-0 dram"]


def test_of_two_that_contain_everything_one_is_taken() -> None:
    assert widest({"psys": [EVERYTHING], "battery": [EVERYTHING]}) == ["psys"]
    assert widest({}) == []
