"""Least squares: worked cases, properties, and how often its intervals hold."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.stats.least_squares import least_squares

# --- least squares --------------------------------------------------------------------------------


positive = st.floats(0.1, 10)


def test_a_line_through_the_origin_is_found_as_by_hand():
    fit = least_squares([[1.0], [2.0]], [2.0, 5.0])
    # By hand: (1*2 + 2*5) / (1 + 4) = 2.4; residuals -0.4 and 0.2, so a variance of 0.2 / 1.
    assert fit.coefficients == (pytest.approx(2.4),)
    assert fit.standard_errors == (pytest.approx((0.2 / 5) ** 0.5),)


@given(st.lists(st.tuples(positive, positive, positive), min_size=8, max_size=30))
def test_what_is_a_sum_is_taken_apart(rows):
    fit = least_squares(rows, [3 * a + 5 * b + 7 * c for a, b, c in rows])
    if fit is not None and max(fit.standard_errors) < 1e-6:
        assert fit.coefficients == pytest.approx((3, 5, 7), abs=1e-3)


COLLINEAR = [[a, 2 * a] for a in range(1, 9)]


@pytest.mark.parametrize(
    "rows", [[], [[1.0, 2.0]], [[1.0, 2.0], [2.0, 1.0]], [[0.0]] * 5, COLLINEAR]
)
def test_too_few_or_collinear_rows_cannot_be_fitted(rows):
    assert least_squares(rows, [1.0] * len(rows)) is None


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    chance = Random(3)
    held = 0
    for _ in range(200):
        table = [[chance.uniform(1, 2), chance.uniform(1, 2)] for _ in range(20)]
        fit = least_squares(table, [4 * a + 6 * b + chance.gauss(0, 0.5) for a, b in table])
        held += abs(fit.coefficients[0] - 4) <= fit.margin(0)
    assert 180 <= held <= 198
