"""Student's t, medians, quantiles, and the interval of a median, on plain lists of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import fmean, stdev
from typing import NamedTuple

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


def medians_of_blocks(values: Sequence[float], blocks: int) -> list[float]:
    """Cut values into blocks of neighbours and return the median of each."""
    edges = [number * len(values) // blocks for number in range(blocks + 1)] if blocks else []
    return [median(values[begin:end]) for begin, end in pairwise(edges)]


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
