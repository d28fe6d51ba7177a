from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.stats import known_mean, known_median, median, quantile

numbers = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("share", "value"),
    # Five values: position 4 * share; 0.95 lies 0.8 of the way from the fourth to the fifth.
    [(0, 1.0), (0.25, 2.0), (0.5, 3.0), (0.95, 4.0 + 0.8 * 6.0), (1, 10.0)],
)
def test_a_quantile_interpolates_between_its_neighbours(share, value):
    assert quantile([1.0, 2.0, 3.0, 4.0, 10.0], share) == pytest.approx(value)


@given(numbers)
def test_the_median_is_the_standard_library_s_and_needs_no_order(values):
    assert median(values) == pytest.approx(statistics.median(values))


@given(st.lists(st.none() | st.floats(-1e9, 1e9), max_size=50))
def test_what_is_unknown_takes_no_part_in_a_median_or_a_mean(values):
    known = [value for value in values if value is not None]
    if not known:
        assert known_median(iter(values)) is known_mean(iter(values)) is None
        return
    assert known_median(iter(values)) == pytest.approx(statistics.median(known))
    assert known_mean(iter(values)) == pytest.approx(statistics.fmean(known))


@given(numbers, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_rise_with_their_share_and_stay_within_the_values(values, one, other):
    ordered = sorted(values)
    low, high = (quantile(ordered, share) for share in sorted((one, other)))
    slack = 1e-6  # rounding of the interpolation, on values up to 1e9
    assert ordered[0] - slack <= low <= high + slack
    assert high <= ordered[-1] + slack
