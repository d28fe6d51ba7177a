"""Medians, quantiles, Student's t and the interval of a median: worked cases and properties."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.stats.intervals import (
    interval_of,
    known_mean,
    known_median,
    median,
    medians_of_blocks,
    quantile,
    t_quantile,
)

numbers = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)
sets = st.lists(st.floats(1e-3, 1e6), min_size=3, max_size=10)


@pytest.mark.parametrize(
    ("share", "value"),
    # Five values: position 4 * share; 0.95 lies 0.8 of the way from the fourth to the fifth.
    [(0, 1.0), (0.25, 2.0), (0.5, 3.0), (0.95, 4.0 + 0.8 * 6.0), (1, 10.0)],
)
def test_a_quantile_interpolates_between_its_neighbours(share, value):
    assert quantile([1.0, 2.0, 3.0, 4.0, 10.0], share) == pytest.approx(value)


@given(st.lists(st.none() | st.floats(-1e9, 1e9), max_size=50))
def test_median_and_mean_are_the_standard_library_s_without_unknown_values(values):
    known = [value for value in values if value is not None]
    if not known:
        assert known_median(iter(values)) is known_mean(iter(values)) is None
        return
    assert median(known) == known_median(iter(values)) == pytest.approx(statistics.median(known))
    assert known_mean(iter(values)) == pytest.approx(statistics.fmean(known))


@given(numbers, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_rise_with_their_share_and_stay_within_the_values(values, one, other):
    ordered = sorted(values)
    low, high = (quantile(ordered, share) for share in sorted((one, other)))
    slack = 1e-6  # rounding of the interpolation, on values up to 1e9
    assert ordered[0] - slack <= low <= high + slack
    assert high <= ordered[-1] + slack


@pytest.mark.parametrize(
    ("degrees", "confidence", "t"),
    # From the printed table of the t distribution.
    [
        *((1, 0.95, 12.706), (2, 0.95, 4.303), (5, 0.95, 2.571), (10, 0.95, 2.228)),
        *((30, 0.95, 2.042), (120, 0.95, 1.980), (5, 0.99, 4.032), (7, 0.999, 5.408)),
        (10**9, 0.95, 1.960),
    ],
)
def test_t_is_the_one_of_the_printed_table(degrees, confidence, t):
    assert t_quantile(degrees, confidence) == pytest.approx(t, abs=6e-4)


def test_blocks_are_of_neighbours_and_cover_all():
    assert medians_of_blocks([1.0, 2.0, 3.0, 9.0, 8.0, 7.0, 7.0], 2) == [2.0, 7.5]
    assert medians_of_blocks([], 0) == []


def test_fewer_than_three_rounds_have_no_interval():
    assert interval_of([7.0]) == (7.0, None, None)
    assert interval_of([7.0, 9.0]) == (8.0, None, None)
    with pytest.raises(ValueError, match="of nothing"):
        interval_of([])


def test_six_runs_are_the_fewest_whose_own_values_are_the_ends():
    # Five values all lie on one side of the true median once in 16, six once in 32.
    assert interval_of([1.0, 2, 3, 4, 5, 600])[1:] == (1, 600)
    assert interval_of([1.0, 2, 3, 4, 5])[2] > 5
    # Nine: the binomial chance of at most one in nine is 10/512, twice that is below 5 %.
    assert interval_of([1.0, 2, 3, 4, 5, 6, 7, 8, 9])[1:] == (2, 8)


@given(sets)
def test_the_interval_of_a_setting_holds_its_median(values):
    found = interval_of(values)
    assert found.low <= found.median == median(values) <= found.high
