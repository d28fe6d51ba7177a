"""Statistics on plain lists of numbers, with the standard library only.

The run is the unit: values are one per run, never one per step. Steps of one run are correlated,
and runs differ by more than their steps show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev
from typing import Final, Literal, NamedTuple

# --- Student's t, in the closed form of integer degrees of freedom


_HALVINGS = 60  # bisections of an angle below pi/2: down to the last bit of a double
_MOST_DEGREES = 10_000  # beyond, the quantile is constant in four digits


@lru_cache(maxsize=4096)
def t_quantile(degrees: int, confidence: float = 0.95) -> float:
    """Return the t for which a share `confidence` of the distribution is between -t and t."""
    degrees = min(degrees, _MOST_DEGREES)
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _share_within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def _share_within(angle: float, degrees: int) -> float:
    odd = degrees % 2
    cosine = math.cos(angle)
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


# --- Medians, quantiles, and the confidence interval of a median


# With two rounds Student's t is 12.7: an interval such as 3.5 to 2,123,825 is useless.
FEWEST_ROUNDS = 3


class Interval(NamedTuple):
    """A median and its interval; the ends are None with fewer than `FEWEST_ROUNDS` values."""

    median: float
    low: float | None
    high: float | None


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, interpolating between neighbours."""
    if not ordered:
        raise ValueError("a quantile of nothing is not defined")
    position = (len(ordered) - 1) * share
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return quantile(sorted(values), 0.5)


def known_median(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def interval_of(values: Sequence[float]) -> Interval:
    """Return the median of positive figures, one per run, with its 95 % interval.

    From six runs on the ends are two of the values, which is valid for any distribution.
    Fewer runs use Student's t on the logarithms.
    """
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    if len(ordered) < FEWEST_ROUNDS:
        return Interval(middle, None, None)
    outside = _values_outside(len(ordered))
    if outside is not None:
        return Interval(middle, ordered[outside], ordered[-1 - outside])
    logs = [math.log(value) for value in ordered]
    half = t_quantile(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    centre = fmean(logs)
    # The mean of equal values may differ from their median in the last digit.
    low, high = min(math.exp(centre - half), middle), max(math.exp(centre + half), middle)
    return Interval(middle, low, high)


def _values_outside(count: int) -> int | None:
    """Return how many values on each side an interval may leave out, by the sign test."""
    outside, below = None, 0.0
    for heads in range(count // 2):
        below += math.comb(count, heads) / 2**count
        if 2 * below > 0.05:
            break
        outside = heads
    return outside


# --- Ratios of throughputs

# A ratio is the throughput of the other over that of the baseline: above 1 the other is faster.
# Throughputs are compared by their logarithms, because noise is multiplicative, and so that the
# answer does not depend on which of the two is the baseline.

Verdict = Literal["faster", "slower", "no difference detected", "cannot tell"]
Tie = Literal["tied", "worse", "undecided"]

FASTER: Final = "faster"
SLOWER: Final = "slower"
NO_DIFFERENCE: Final = "no difference detected"
CANNOT_TELL: Final = "cannot tell"

MOST_ROUNDS = 200
_POWER = 0.8
# The ratio of equal figures may differ from 1 in its last digits.
_ROUNDING = 1e-9


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


def ratio_of_rounds(
    baseline: Sequence[float], other: Sequence[float], confidence: float = 0.95
) -> Ratio | None:
    """Compare settings round by round, by Student's interval; None without a round."""
    logs = [math.log(b / a) for a, b in zip(baseline, other, strict=True)]
    if not logs:
        return None
    if len(logs) < FEWEST_ROUNDS:
        return Ratio(math.exp(fmean(logs)), None, None, len(logs), None)
    noise = stdev(logs)
    half = t_quantile(len(logs) - 1, confidence) * noise / math.sqrt(len(logs))
    return _around(fmean(logs), half, len(logs), noise)


def ratio_of_sets(
    baseline: Sequence[float], other: Sequence[float], confidence: float = 0.95
) -> Ratio | None:
    """Compare sets of runs that were not run in rounds, by Welch's interval; None without a run."""
    if not baseline or not other:
        return None
    sides = [[math.log(value) for value in side] for side in (baseline, other)]
    centre = fmean(sides[1]) - fmean(sides[0])
    if min(map(len, sides)) == 1:
        return Ratio(math.exp(centre), None, None, None, None)
    variances = [stdev(side) ** 2 for side in sides]
    noise = math.sqrt(sum(variances))
    parts = [variance / len(side) for variance, side in zip(variances, sides, strict=True)]
    half = math.sqrt(sum(parts))
    if half > 0:
        shares = [part / sum(parts) for part in parts]
        degrees = 1 / sum(
            share**2 / (len(side) - 1) for share, side in zip(shares, sides, strict=True)
        )
        half *= t_quantile(max(1, math.floor(degrees)), confidence)
    return _around(centre, half, None, noise)


def _around(centre: float, half: float, rounds: int | None, noise: float) -> Ratio:
    low, middle, high = (math.exp(centre + shift) for shift in (-half, 0, half))
    return Ratio(middle, low, high, rounds, noise)


def confidence_of_each(comparisons: int, overall: float = 0.95) -> float:
    """Return the confidence that each interval needs for all to hold together (Bonferroni)."""
    return 1 - (1 - overall) / max(1, comparisons)


def verdict(ratio: Ratio | None) -> Verdict:
    """Return the verdict that a ratio's interval supports, on the other against the baseline."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return CANNOT_TELL
    if ratio.low > 1 + _ROUNDING:
        return FASTER
    if ratio.high < 1 - _ROUNDING:
        return SLOWER
    return NO_DIFFERENCE


def tie(to_best: Ratio | None, most_slowdown: float = 0.03) -> Tie:
    """Return whether a setting certainly loses at most `most_slowdown` of the best's throughput."""
    if to_best is None or to_best.low is None or to_best.high is None:
        return "undecided"
    if to_best.low >= 1 - most_slowdown - _ROUNDING:
        return "tied"
    return "worse" if to_best.high < 1 - most_slowdown else "undecided"


def rounds_needed(noise: float, slowdown: float = 0.05, confidence: float = 0.95) -> int | None:
    """Return the rounds that detect a slowdown four times in five; None above `MOST_ROUNDS`."""
    for rounds in range(FEWEST_ROUNDS, MOST_ROUNDS + 1):
        # The interval excludes 1, at the quantile of the mean that a share `_POWER` exceeds.
        width = t_quantile(rounds - 1, confidence) + t_quantile(rounds - 1, 2 * _POWER - 1)
        if width * noise / math.sqrt(rounds) <= -math.log1p(-slowdown):
            return rounds
    return None


# --- Ordinary least squares through the origin, for a few unknowns


_SINGULAR = 1e-10  # the least pivot, with columns scaled to length 1


@dataclass(frozen=True)
class Fit:
    """Coefficients and their standard errors."""

    coefficients: tuple[float, ...]
    standard_errors: tuple[float, ...]
    degrees: int

    def margin(self, place: int) -> float:
        """Return half the width of a coefficient's 95 % interval."""
        return self.standard_errors[place] * t_quantile(self.degrees)


def least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> Fit | None:
    """Fit `targets` by the columns of `rows`; None if the columns are collinear."""
    unknowns = len(rows[0]) if rows else 0
    degrees = len(rows) - unknowns
    lengths = [sum(row[k] ** 2 for row in rows) ** 0.5 for k in range(unknowns)]
    if degrees < 1 or not unknowns or not all(lengths):
        return None
    scaled = [[value / length for value, length in zip(row, lengths, strict=True)] for row in rows]
    products = [
        [sum(row[i] * row[j] for row in scaled) for j in range(unknowns)] for i in range(unknowns)
    ]
    inverse = _inverted(products)
    if inverse is None:
        return None
    right = [
        sum(row[k] * y for row, y in zip(scaled, targets, strict=True)) for k in range(unknowns)
    ]
    solution = [sum(a * b for a, b in zip(line, right, strict=True)) for line in inverse]
    residual = sum(
        (y - sum(a * b for a, b in zip(row, solution, strict=True))) ** 2
        for row, y in zip(scaled, targets, strict=True)
    )
    variance = residual / degrees
    return Fit(
        tuple(value / length for value, length in zip(solution, lengths, strict=True)),
        tuple(max(0.0, inverse[k][k] * variance) ** 0.5 / lengths[k] for k in range(unknowns)),
        degrees,
    )


def _inverted(matrix: list[list[float]]) -> list[list[float]] | None:
    """Return the inverse by Gauss-Jordan elimination with partial pivoting."""
    size = len(matrix)
    work = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        best = max(range(column, size), key=lambda row: abs(work[row][column]))
        if abs(work[best][column]) < _SINGULAR:
            return None
        work[column], work[best] = work[best], work[column]
        pivot = work[column][column]
        work[column] = [value / pivot for value in work[column]]
        for row in range(size):
            if row != column:
                factor = work[row][column]
                work[row] = [a - factor * b for a, b in zip(work[row], work[column], strict=True)]
    return [row[size:] for row in work]
