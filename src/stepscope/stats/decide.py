"""Decisions from the throughputs of runs: the only place where anything is called faster.

Every function but `trend` takes one figure per run, never one per step: steps of one run are alike,
runs are not. A ratio is the throughput of the other over that of the baseline: above 1 the other is
faster. Throughputs are compared by their logarithms, because noise is multiplicative, and so that
the answer does not depend on which of the two is the baseline.

`design` orders the runs, `contrast` compares two settings, `family` several with one, `leaders`
finds the best and what is not shown to be worse, `gate` asks whether a setting loses more than a
margin, `race` chooses among settings, `rounds_for` plans. `trend` tells whether a run drifts.
`bench/decide.py` shows by simulation that their error rates hold.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import fmean, stdev
from typing import Final, Generic, Literal, TypeVar

from stepscope.stats.intervals import FEWEST_ROUNDS, medians_of_blocks, t_quantile
from stepscope.stats.least_squares import least_squares

Setting = TypeVar("Setting", bound=Hashable)
Rates = Sequence["float | None"]  # one figure per round; None where the run failed
TimedRate = tuple[float, float]  # a figure, and when its run began

Verdict = Literal["faster", "slower", "no difference detected", "cannot tell"]

FASTER: Final = "faster"
SLOWER: Final = "slower"
NO_DIFFERENCE: Final = "no difference detected"
CANNOT_TELL: Final = "cannot tell"

ERROR: Final = 0.05  # of all statements of one answer together
MARGIN: Final = 0.03  # a smaller loss of throughput than this does not count
MOST_ROUNDS: Final = 200
POWER: Final = 0.8
# Equal settings with hardly any spread are not called different for a thousandth.
_RESOLUTION = math.log1p(0.005)
_LARGEST_LOG = 14.0  # a ratio of a million: beyond, the end of an interval says no more
_ROUNDING = 1e-9  # the ratio of equal figures may differ from 1 in its last digits


# --- The order of runs


def design(
    settings: Sequence[Setting], rounds: int, seed: int | None = None
) -> list[list[Setting]]:
    """Return the order of the settings in each round: random and balanced.

    Over as many rounds as there are settings (twice as many for an odd number), each setting is
    equally often at each place, and equally often directly after each other one (Williams).
    """
    chance = random.Random(seed)
    orders: list[list[Setting]] = []
    while len(orders) < rounds:
        shuffled = chance.sample(list(settings), len(settings))
        rows = _williams(len(shuffled))
        chance.shuffle(rows)
        orders += [[shuffled[place] for place in row] for row in rows]
    return orders[:rounds]


def _williams(size: int) -> list[list[int]]:
    """Return the row 0, 1, -1, 2, -2, ... and its shifts, modulo the size."""
    first = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(size)]
    rows = [[(place + shift) % size for place in first] for shift in range(size)]
    return rows + [row[::-1] for row in rows] if size % 2 and size > 1 else rows


# --- Two settings


@dataclass(frozen=True)
class Ratio:
    """A multiple of the baseline's throughput; the ends are None with too few rounds or runs.

    `rounds` is None for sets. `noise` is the standard deviation of the logarithm of the ratio of
    two single runs: 0.12 if two equal runs differ by 12 %.
    """

    ratio: float
    low: float | None
    high: float | None
    rounds: int | None
    noise: float | None


def contrast(baseline: Rates, other: Rates, error: float = ERROR) -> Ratio | None:
    """Compare two settings round by round, by Student's interval; None without a common round."""
    # A setting that left a race has fewer rounds.
    pairs = zip(baseline, other, strict=False)
    logs = [math.log(after) - math.log(before) for before, after in pairs if before and after]
    if not logs:
        return None
    centre = fmean(logs)
    if len(logs) < FEWEST_ROUNDS:
        return Ratio(_exp(centre), None, None, len(logs), None)
    noise = stdev(logs)
    half = t_quantile(len(logs) - 1, 1 - error) * noise / math.sqrt(len(logs))
    half = max(half, _RESOLUTION)
    return Ratio(_exp(centre), _exp(centre - half), _exp(centre + half), len(logs), noise)


def contrast_of_sets(
    baseline: Sequence[TimedRate], other: Sequence[TimedRate], error: float = ERROR
) -> Ratio | None:
    """Compare sets of runs that were not run in rounds; None without a run.

    The interval covers two: Welch's, and that of a model in which the machine drifts linearly in
    time. For sets that ran one after the other, a slower setting and a slower day look alike, but
    for the drift within each set.
    """
    if not baseline or not other:
        return None
    sides = [[math.log(rate) for rate, _ in side] for side in (baseline, other)]
    centre = fmean(sides[1]) - fmean(sides[0])
    if min(map(len, sides)) < FEWEST_ROUNDS:
        return Ratio(_exp(centre), None, None, None, None)
    halves = [(centre, max(_welch(sides, error), _RESOLUTION))]
    times = [at for side in (baseline, other) for _, at in side]
    middle = fmean(times)
    which = [0.0] * len(baseline) + [1.0] * len(other)
    rows = [(1.0, side, at - middle) for side, at in zip(which, times, strict=True)]
    drifting = least_squares(rows, [*sides[0], *sides[1]])
    if drifting is not None:
        halves.append((drifting.coefficients[1], drifting.margin(1, 1 - error)))
    low, high = min(at - half for at, half in halves), max(at + half for at, half in halves)
    noise = math.hypot(*map(stdev, sides))
    return Ratio(_exp(centre), _exp(low), _exp(high), None, noise)


def _welch(sides: Sequence[Sequence[float]], error: float) -> float:
    """Return half of Welch's interval of the difference of two means."""
    parts = [stdev(side) ** 2 / len(side) for side in sides]
    if not sum(parts):
        return 0.0
    shares = [
        (part / sum(parts)) ** 2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True)
    ]
    degrees = max(1, math.floor(1 / sum(shares)))
    return t_quantile(degrees, 1 - error) * math.sqrt(sum(parts))


def _exp(log: float) -> float:
    return math.exp(max(-_LARGEST_LOG, min(_LARGEST_LOG, log)))


def verdict(ratio: Ratio | None) -> Verdict:
    """Return the verdict that a ratio's interval supports, on the other against the baseline."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return CANNOT_TELL
    if ratio.low > 1 + _ROUNDING:
        return FASTER
    return SLOWER if ratio.high < 1 - _ROUNDING else NO_DIFFERENCE


# --- One run


_TREND_BLOCKS = 5
_TREND_ERROR = 0.01


def trend(steps: Sequence[float]) -> Verdict:
    """Return whether the steps of a run get slower, from a line through the medians of its blocks.

    Neighbouring steps are alike. If they are for up to a tenth of the run, a run that does not
    drift is said to in at most 5 % of cases; with longer phases, no statistic can tell.
    """
    if len(steps) < _TREND_BLOCKS:
        return CANNOT_TELL
    logs = [math.log(each) for each in medians_of_blocks(steps, _TREND_BLOCKS) if each > 0]
    line = least_squares([(1.0, float(place)) for place in range(len(logs))], logs)
    if line is None:
        return CANNOT_TELL
    slope, margin = line.coefficients[1], line.margin(1, 1 - _TREND_ERROR)
    if abs(slope) <= margin:
        return NO_DIFFERENCE
    return SLOWER if slope > 0 else FASTER


# --- Several settings against one


@dataclass(frozen=True)
class Compared:
    """A contrast and its verdict; those of a family hold together."""

    ratio: Ratio | None
    verdict: Verdict


def family(
    contrasts: Sequence[Callable[[float], Ratio | None]], error: float = ERROR
) -> list[Compared]:
    """Compare several settings with one; each contrast is called with the error rate to use.

    The verdicts are Holm's: a comparison that is decided while all share the error rate leaves its
    share to the open ones. The intervals are Bonferroni's; one that excludes 1 only by Holm's
    verdict ends at 1.
    """
    at_once = [find(error / max(1, len(contrasts))) for find in contrasts]
    verdicts = [verdict(ratio) for ratio in at_once]
    undecided = [place for place, each in enumerate(verdicts) if each == NO_DIFFERENCE]
    decided = len(contrasts) - len(undecided)
    while decided and undecided:
        share = error / len(undecided)
        for place in undecided:
            verdicts[place] = verdict(contrasts[place](share))
        left = [place for place in undecided if verdicts[place] == NO_DIFFERENCE]
        decided, undecided = len(undecided) - len(left), left
    return [
        Compared(_on_its_side_of_1(ratio, each), each)
        for ratio, each in zip(at_once, verdicts, strict=True)
    ]


def _on_its_side_of_1(ratio: Ratio | None, answer: Verdict) -> Ratio | None:
    if ratio is None or ratio.low is None or ratio.high is None:
        return ratio
    if answer == FASTER:
        return replace(ratio, low=max(1.0, ratio.low))
    return replace(ratio, high=min(1.0, ratio.high)) if answer == SLOWER else ratio


def leaders(rates: Mapping[Setting, Rates], error: float = ERROR) -> list[Setting]:
    """Return the setting of the highest mean, then those that are not shown to be below it.

    Any two could be the ones that are compared, so each pair has its share of the error rate.
    """
    means = {
        each: fmean(math.log(rate) for rate in found if rate)
        for each, found in rates.items()
        if any(found)
    }
    if not means:
        return []
    best, *others = sorted(means, key=lambda each: -means[each])
    of_a_pair = error / max(1, math.comb(len(means), 2))
    compared = {each: contrast(rates[best], rates[each], of_a_pair) for each in others}
    return [best, *(each for each in compared if verdict(compared[each]) != SLOWER)]


# --- Whether a setting loses more than a margin


GateAnswer = Literal["pass", "fail", "cannot tell"]


@dataclass(frozen=True)
class GateResult:
    """Whether the other loses more than a margin of the baseline's throughput.

    The ends of `ratio` are one-sided bounds, each wrong with a chance of `error`.
    """

    answer: GateAnswer
    ratio: Ratio | None
    failed: int
    error: float


def gate(
    baseline: Rates,
    other: Rates,
    *,
    margin: float = MARGIN,
    error: float = ERROR,
    look: int = 1,
    looks: int = 1,
) -> GateResult:
    """Decide by the rounds so far; look 1, 2, ... of `looks` spends its part of the error rate.

    A run that failed is no pass: with some failures the answer is at best `cannot tell`.
    """
    return gate_of(
        lambda error: contrast(baseline, other, error),
        failed=sum(rate is None for rate in other),
        runs=len(other),
        margin=margin,
        error=spent(error, look, looks),
    )


def gate_of(
    compare: Callable[[float], Ratio | None],
    *,
    failed: int,
    runs: int,
    margin: float = MARGIN,
    error: float = ERROR,
) -> GateResult:
    """Decide by any contrast, which is called with the error rate to use."""
    ratio = compare(2 * error)
    answer: GateAnswer = "cannot tell"
    if failed and failed == runs:
        answer = "fail"
    elif ratio is not None and ratio.low is not None and ratio.high is not None:
        if ratio.high < 1 - margin:
            answer = "fail"
        elif ratio.low >= 1 - margin and not failed:
            answer = "pass"
    return GateResult(answer, ratio, failed, error)


def spent(error: float, look: int, looks: int) -> float:
    """Return the error rate of one look, so that all looks together spend `error`.

    The bound holds however the looks depend on each other. Later looks, with more rounds, get more.
    """
    return error * 2 * look / (looks * (looks + 1))


# --- A race of settings


@dataclass(frozen=True)
class Race(Generic[Setting]):
    """What some rounds of a race say.

    The `pick` is the current setting unless another one is shown to be faster. It is `shown` if
    each other setting is at most the margin faster than it. `racing` are those that are not yet
    shown to be slower than the leader by more than the margin; `to_leader` has their ratios to it.
    """

    pick: Setting
    shown: bool
    leader: Setting
    racing: tuple[Setting, ...]
    to_leader: Mapping[Setting, Ratio | None]


def race(
    rates: Mapping[Setting, Rates],
    current: Setting,
    *,
    margin: float = MARGIN,
    error: float = ERROR,
    look: int = 1,
    looks: int = 1,
) -> Race[Setting] | None:
    """Choose among settings, given from the smallest to the largest; None if all of them failed.

    A setting with a failed run is out; one with fewer rounds was shown to be slower at an earlier
    look. Half of the error rate is for losses within the margin and beyond it, half for what is
    faster than the current setting.
    """
    known = {each: found for each, found in rates.items() if found and None not in found}
    if not known:
        return None
    most = max(map(len, known.values()))
    full = [each for each, found in known.items() if len(found) == most]
    leader = max(full, key=lambda each: fmean(math.log(rate) for rate in known[each] if rate))
    of_a_look = spent(error, look, looks)
    of_a_pair = of_a_look / max(1, len(known) - 1)

    def against(baseline: Setting, other: Setting) -> Ratio | None:
        return contrast(known[baseline], known[other], of_a_pair)

    def is_within_margin_of(other: Setting, baseline: Setting) -> bool:
        found = against(baseline, other)
        return found is not None and found.low is not None and found.low >= 1 - margin

    to_leader = {each: against(leader, each) for each in known}
    racing = tuple(
        each
        for each in full
        if each == leader
        or (found := to_leader[each]) is None
        or found.high is None
        or found.high >= 1 - margin
    )
    shown = {
        each
        for each in racing
        if all(is_within_margin_of(each, other) for other in racing if other != each)
    }
    if current in known:
        others = [each for each in racing if each != current]
        contrasts = [partial(contrast, known[current], known[each]) for each in others]
        better = [
            each
            for each, compared in zip(others, family(contrasts, of_a_look), strict=True)
            if compared.verdict == FASTER and compared.ratio and compared.ratio.ratio >= 1 + margin
        ]
        default = current
    else:
        better, default = list(racing), leader
    near = [each for each in better if (r := to_leader[each]) and r.ratio >= 1 - margin]
    candidates = [*(each for each in better if each in shown), *near, *better, default]
    return Race(candidates[0], candidates[0] in shown, leader, racing, to_leader)


# --- How many rounds


def rounds_for(
    noise: float, rounds: int, slowdown: float = 0.05, error: float = ERROR
) -> tuple[int, int | None] | None:
    """Return how many rounds detect a slowdown four times in five: a range, from `rounds` rounds.

    The lower end takes the noise as it was seen, the upper end takes the noise that nine in ten
    such pilots do not exceed. An end above `MOST_ROUNDS` is None, and so is the range if both are.
    """
    fewest = _rounds_at(noise, slowdown, error)
    if fewest is None:
        return None
    return fewest, _rounds_at(noise * _largest_noise(rounds - 1), slowdown, error)


def _rounds_at(noise: float, slowdown: float, error: float) -> int | None:
    for rounds in range(FEWEST_ROUNDS, MOST_ROUNDS + 1):
        # The interval excludes 1, at the quantile of the mean that a share `POWER` exceeds.
        width = t_quantile(rounds - 1, 1 - error) + t_quantile(rounds - 1, 2 * POWER - 1)
        if width * noise / math.sqrt(rounds) <= -math.log1p(-slowdown):
            return rounds
    return None


@lru_cache
def _largest_noise(degrees: int, confidence: float = 0.9) -> float:
    """Return the upper confidence limit of a standard deviation, as a multiple of its estimate."""
    low, high = 0.0, float(degrees)
    for _ in range(60):
        middle = (low + high) / 2
        if _chi_square_below(middle, degrees) < 1 - confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees / high)


def _chi_square_below(value: float, degrees: int) -> float:
    """Return the chance that chi-square is below a value, by the series of the incomplete gamma."""
    shape, half = degrees / 2, value / 2
    if not half:
        return 0.0
    term = total = 1 / shape
    step = shape
    while term > 1e-12 * total:
        step += 1
        term *= half / step
        total += term
    return total * math.exp(shape * math.log(half) - half - math.lgamma(shape))
