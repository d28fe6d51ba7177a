"""Ratios with intervals: worked cases, properties, and how often they are wrong in play."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.stats import (
    Ratio,
    confidence_of_each,
    interval_of,
    median,
    ratio_of_rounds,
    ratio_of_sets,
    rounds_needed,
    t_quantile,
    tie,
    verdict,
)

NOISE = 0.12  # of the log of the ratio of two equal runs, as seen on a virtual machine
ROUNDS = 6
PLAYED = 1500
# Three standard deviations of a share of 0.05 that is estimated from so many.
AT_MOST_1_IN_20 = 0.05 + 3 * math.sqrt(0.05 * 0.95 / PLAYED)

rates = st.floats(1e-3, 1e6)
sets = st.lists(rates, min_size=3, max_size=10)


# --- Student's t ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "confidence", "t"),
    # From the printed table of the t distribution.
    [
        (1, 0.95, 12.706),
        (2, 0.95, 4.303),
        (5, 0.95, 2.571),
        (10, 0.95, 2.228),
        (30, 0.95, 2.042),
        (120, 0.95, 1.980),
        (5, 0.99, 4.032),
        (7, 0.999, 5.408),
        (10**9, 0.95, 1.960),
    ],
)
def test_t_is_the_one_of_the_printed_table(degrees, confidence, t):
    assert t_quantile(degrees, confidence) == pytest.approx(t, abs=6e-4)


# --- worked cases ---------------------------------------------------------------------------------


def test_the_ratio_of_rounds_is_that_of_each_round_and_not_of_the_sums():
    # The second round ran on a machine that was ten times slower; the ratio is 2 in all.
    found = ratio_of_rounds([100, 10, 50], [200, 20, 100])
    two = pytest.approx(2)
    assert found == Ratio(two, two, two, 3, pytest.approx(0))
    assert verdict(found) == "faster"


def test_the_interval_of_rounds_is_student_s_on_the_logs():
    # Logs of the ratios: -0.1, 0, 0.1; their standard deviation is 0.1; t of 2 degrees is 4.303.
    found = ratio_of_rounds([1, 1, 1], [math.exp(-0.1), 1, math.exp(0.1)])
    assert found.ratio == pytest.approx(1)
    assert found.high == pytest.approx(math.exp(4.3027 * 0.1 / math.sqrt(3)), rel=1e-4)
    assert found.low == pytest.approx(1 / found.high)
    assert found.noise == pytest.approx(0.1)
    assert verdict(found) == "no difference detected"


def test_the_interval_of_sets_is_welch_s_with_the_degrees_rounded_down():
    # Variances of the logs 0.01 and 0.04, three runs each: 2.94 degrees, rounded down to 2.
    ours = [math.exp(x) for x in (-0.1, 0, 0.1)]
    theirs = [math.exp(1 + x) for x in (-0.2, 0, 0.2)]
    found = ratio_of_sets(ours, theirs)
    assert found.ratio == pytest.approx(math.e)
    half = 4.3027 * math.sqrt(0.05 / 3)
    assert found.low == pytest.approx(math.exp(1 - half), rel=1e-4)
    assert found.rounds is None
    assert found.noise == pytest.approx(math.sqrt(0.05))


@pytest.mark.parametrize("compare", [ratio_of_rounds, ratio_of_sets])
def test_one_run_a_side_gives_a_ratio_but_nothing_to_tell_by(compare):
    found = compare([100.0], [150.0])
    assert (found.ratio, found.low, found.high) == (pytest.approx(1.5), None, None)
    assert verdict(found) == "cannot tell"
    assert compare([], []) is None
    assert verdict(None) == "cannot tell"
    assert verdict(ratio_of_sets([100.0], [200.0, 201.0, 199.0])) == "cannot tell"


def test_rounds_that_do_not_pair_are_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="shorter"):
        ratio_of_rounds([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (0.971, 1.02, "tied"),
        (0.97, 0.99, "tied"),  # certainly slower, but by so little that it does not matter
        (0.9, 0.96, "worse"),
        (0.9, 0.98, "undecided"),
        (None, None, "undecided"),
    ],
)
def test_tied_is_at_most_3_percent_slower_at_the_edge_of_the_interval(low, high, answer):
    assert tie(Ratio(0.95, low, high, 6, 0.1)) == answer
    assert tie(None) == "undecided"


# --- properties -----------------------------------------------------------------------------------


@given(sets)
def test_what_is_compared_with_itself_does_not_differ(values):
    for found in (ratio_of_rounds(values, values), ratio_of_sets(values, values[::-1])):
        assert found.ratio == pytest.approx(1)
        assert verdict(found) == "no difference detected"


@given(rates, st.integers(2, 9), st.integers(2, 9))
def test_equal_figures_do_not_differ_however_many_there_are(rate, ours, theirs):
    assert verdict(ratio_of_sets([rate] * ours, [rate] * theirs)) == "no difference detected"


@given(st.lists(st.tuples(rates, rates), min_size=3, max_size=10), st.floats(0.1, 10))
def test_turned_round_the_ratio_is_turned_round_and_units_do_not_matter(pairs, unit):
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    for compare in (ratio_of_rounds, ratio_of_sets):
        there = compare(ours, theirs)
        back = compare([b * unit for b in theirs], [a * unit for a in ours])
        assert there.low <= there.ratio * (1 + 1e-9)
        assert back.ratio == pytest.approx(1 / there.ratio)
        assert math.log(back.high) == pytest.approx(-math.log(there.low), abs=1e-6)


@given(sets)
def test_the_interval_of_a_setting_holds_its_median(values):
    found = interval_of(values)
    assert found.low <= found.median == median(values) <= found.high


def test_fewer_than_three_rounds_have_no_interval():
    assert interval_of([7.0]) == (7.0, None, None)
    assert interval_of([7.0, 9.0]) == (8.0, None, None)
    assert ratio_of_rounds([2.0, 2.0], [4.0, 4.0]) == Ratio(pytest.approx(2), None, None, 2, None)
    assert verdict(ratio_of_rounds([2.0, 2.0], [4.0, 4.0])) == "cannot tell"
    with pytest.raises(ValueError, match="of nothing"):
        interval_of([])


def test_six_runs_are_the_fewest_whose_own_values_are_the_ends():
    # Five values all lie on one side of the true median once in 16, six once in 32.
    assert interval_of([1.0, 2, 3, 4, 5, 600])[1:] == (1, 600)
    assert interval_of([1.0, 2, 3, 4, 5])[2] > 5
    # Nine: the binomial chance of at most one in nine is 10/512, twice that is below 5 %.
    assert interval_of([1.0, 2, 3, 4, 5, 6, 7, 8, 9])[1:] == (2, 8)


# --- how often they are wrong, in play ------------------------------------------------------------


def normal(random: Random) -> float:
    return random.gauss(0, NOISE / math.sqrt(2))


def heavy_tailed(random: Random) -> float:
    """Student's t of two degrees: now and then far off."""
    chi_squared = random.gauss(0, 1) ** 2 + random.gauss(0, 1) ** 2
    return NOISE / 2 * random.gauss(0, 1) / math.sqrt(chi_squared / 2)


def contaminated(random: Random) -> float:
    """One run in ten meets a neighbour on the machine and is up to twice as slow."""
    return normal(random) - (random.uniform(0, math.log(2)) if random.random() < 0.1 else 0)


Noise = Callable[[Random], float]
NOISES = pytest.mark.parametrize("noise", [normal, heavy_tailed, contaminated])


def play_rounds(
    random: Random, noise: Noise, others: int, slowdown: float = 0
) -> list[list[float]]:
    """Play a sweep on a machine that drifts: a baseline and others, each with its rounds."""
    level = [100 * math.exp(-0.1 * n + random.gauss(0, 0.3)) for n in range(ROUNDS)]
    return [
        [rate * (1 - slowdown * (side > 0)) * math.exp(noise(random)) for rate in level]
        for side in range(others + 1)
    ]


@NOISES
def test_equal_settings_in_rounds_are_called_different_at_most_once_in_20(noise):
    random = Random(1)
    wrong = 0
    for _ in range(PLAYED):
        baseline, other = play_rounds(random, noise, others=1)
        wrong += verdict(ratio_of_rounds(baseline, other)) != "no difference detected"
    assert wrong / PLAYED <= AT_MOST_1_IN_20


@NOISES
def test_of_many_equal_settings_any_is_called_different_at_most_once_in_20(noise):
    random = Random(2)
    others = 5
    each = confidence_of_each(others)
    assert each == pytest.approx(0.99)
    wrong = 0
    played = PLAYED // 2
    for _ in range(played):
        baseline, *rest = play_rounds(random, noise, others)
        verdicts = {verdict(ratio_of_rounds(baseline, other, each)) for other in rest}
        wrong += verdicts != {"no difference detected"}
    assert wrong / played <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / played)


@NOISES
@pytest.mark.parametrize(("ours", "theirs"), [(2, 2), (3, 6), (6, 6)])
def test_equal_sets_are_called_different_at_most_once_in_20(noise, ours, theirs):
    random = Random(3)
    wrong = 0
    for _ in range(PLAYED):
        sides = [[math.exp(noise(random)) for _ in range(count)] for count in (ours, theirs)]
        wrong += verdict(ratio_of_sets(*sides)) != "no difference detected"
    assert wrong / PLAYED <= AT_MOST_1_IN_20


@pytest.mark.parametrize("slowdown", [0.5, 1 / 3])
def test_a_large_slowdown_is_found_every_time_in_six_rounds(slowdown):
    random = Random(4)
    for _ in range(PLAYED):
        baseline, slower = play_rounds(random, normal, others=1, slowdown=slowdown)
        assert verdict(ratio_of_rounds(baseline, slower)) == "slower"
        assert verdict(ratio_of_rounds(slower, baseline)) == "faster"


# --- how many rounds a slowdown needs -------------------------------------------------------------


def share_found(noise: float, slowdown: float, rounds: int) -> float:
    random = Random(99)
    found = 0
    for _ in range(PLAYED):
        other = [(1 - slowdown) * math.exp(random.gauss(0, noise)) for _ in range(rounds)]
        found += verdict(ratio_of_rounds([1.0] * rounds, other)) == "slower"
    return found / PLAYED


@pytest.mark.parametrize(("noise", "slowdown"), [(0.03, 0.05), (0.06, 0.05), (0.12, 0.2)])
def test_with_that_many_rounds_it_is_found_four_times_in_five(noise, slowdown):
    rounds = rounds_needed(noise, slowdown)
    assert share_found(noise, slowdown, rounds) >= 0.8 - 0.04
    assert share_found(noise, slowdown, rounds - 1) < 0.8 + 0.04


def test_more_noise_smaller_slowdowns_more_power_and_more_confidence_need_more_rounds():
    usual = rounds_needed(0.06)
    more = [
        rounds_needed(0.12),
        rounds_needed(0.06, slowdown=0.03),
        rounds_needed(0.06, power=0.95),
        rounds_needed(0.06, confidence=0.99),
    ]
    assert all(rounds is not None and rounds > usual for rounds in more)
    assert rounds_needed(0) == 3
    assert rounds_needed(3.0, most=50) is None
