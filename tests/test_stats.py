"""Statistics: worked cases, properties, and how often they are wrong in simulations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.stats.decide import Ratio, verdict
from stepscope.stats.intervals import (
    interval_of,
    known_mean,
    known_median,
    median,
    quantile,
    t_quantile,
)
from stepscope.stats.least_squares import least_squares
from stepscope.stats.ratios import (
    confidence_of_each,
    ratio_of_rounds,
    ratio_of_sets,
    rounds_needed,
    tie,
)

NOISE = 0.12  # of the log of the ratio of two equal runs, as seen on a virtual machine
ROUNDS = 6
PLAYED = 1500

rates = st.floats(1e-3, 1e6)
sets = st.lists(rates, min_size=3, max_size=10)
numbers = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


# --- medians, quantiles and Student's t -----------------------------------------------------------


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


# --- intervals and ratios, by hand ----------------------------------------------------------------


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


@given(sets, st.integers(2, 9))
def test_what_is_compared_with_itself_does_not_differ(values, count):
    for found in (
        ratio_of_rounds(values, values),
        ratio_of_sets(values, values[::-1]),
        ratio_of_sets([values[0]] * count, [values[0]] * len(values)),
    ):
        assert found.ratio == pytest.approx(1)
        assert verdict(found) == "no difference detected"


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


# --- how often they are wrong, in simulations -----------------------------------------------------


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


def assert_seldom_wrong(verdicts_of_a_play: Callable[[], set[str]], played: int = PLAYED) -> None:
    """Equal settings may be called different once in 20, within three standard deviations."""
    wrong = sum(verdicts_of_a_play() != {"no difference detected"} for _ in range(played))
    assert wrong / played <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / played)


@NOISES
@pytest.mark.parametrize(("others", "played"), [(1, PLAYED), (5, PLAYED // 2)])
def test_of_equal_settings_any_is_called_different_at_most_once_in_20(noise, others, played):
    random, each = Random(others), confidence_of_each(others)
    assert each == pytest.approx(1 - 0.05 / others)

    def play() -> set[str]:
        baseline, *rest = play_rounds(random, noise, others)
        return {verdict(ratio_of_rounds(baseline, other, each)) for other in rest}

    assert_seldom_wrong(play, played)


@NOISES
@pytest.mark.parametrize("runs", [(2, 2), (3, 6), (6, 6)])
def test_equal_sets_are_called_different_at_most_once_in_20(noise, runs):
    random = Random(3)

    def play() -> set[str]:
        ours, theirs = ([math.exp(noise(random)) for _ in range(count)] for count in runs)
        return {verdict(ratio_of_sets(ours, theirs))}

    assert_seldom_wrong(play)


@pytest.mark.parametrize("slowdown", [0.5, 1 / 3])
def test_a_large_slowdown_is_found_every_time_in_six_rounds(slowdown):
    random = Random(4)
    for _ in range(PLAYED):
        baseline, slower = play_rounds(random, normal, others=1, slowdown=slowdown)
        assert verdict(ratio_of_rounds(baseline, slower)) == "slower"
        assert verdict(ratio_of_rounds(slower, baseline)) == "faster"


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


def test_more_noise_smaller_slowdowns_and_more_confidence_need_more_rounds():
    usual = rounds_needed(0.06)
    more = [rounds_needed(0.12), rounds_needed(0.06, 0.03), rounds_needed(0.06, confidence=0.99)]
    assert all(rounds is not None and rounds > usual for rounds in more)
    assert rounds_needed(0) == 3
    assert rounds_needed(3.0) is None


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
