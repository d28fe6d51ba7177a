"""The middle of some values, their quantiles, and how well the middle is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import fmean, stdev
from typing import NamedTuple

# --- Student's t for whole degrees of freedom, where its distribution has a closed form


_HALVINGS = 60  # of an angle below pi/2: down to the last bit of a double
_MOST_DEGREES = 10_000  # beyond, the quantile no longer changes in the fourth digit


@lru_cache(maxsize=4096)
def t_quantile(degrees: int, confidence: float = 0.95) -> float:
    """Return the t that holds a share `confidence` of the distribution between -t and t."""
    if degrees < 1 or not 0 <= confidence < 1:
        raise ValueError(
            "wanted one degree of freedom or more and a confidence from 0 to below 1, "
            f"found {degrees} and {confidence}"
        )
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


class Interval(NamedTuple):
    """A median and where it may lie; the ends are unknown where there was one value."""

    median: float
    low: float | None
    high: float | None


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of values that are already sorted, interpolating between neighbours."""
    if not ordered:
        raise ValueError("a quantile of nothing is not defined")
    position = (len(ordered) - 1) * share
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    return quantile(sorted(values), 0.5)


def known_median(values: Iterable[float | None]) -> float | None:
    """Return the middle of those values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of those values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def interval_of(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the median of positive figures, one a run, with its confidence interval.

    From six runs on (at 95 %) the ends are two of the values themselves, which is right whatever
    their distribution. Fewer cannot reach that confidence so; there it is Student's t on the logs.
    """
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    if len(ordered) < 2:
        return Interval(middle, None, None)
    outside = _values_outside(len(ordered), confidence)
    if outside is not None:
        return Interval(middle, ordered[outside], ordered[-1 - outside])
    logs = [math.log(value) for value in ordered]
    half = t_quantile(len(logs) - 1, confidence) * stdev(logs) / math.sqrt(len(logs))
    centre = fmean(logs)
    # Of equal values the mean may differ from the median in its last digit.
    low, high = min(math.exp(centre - half), middle), max(math.exp(centre + half), middle)
    return Interval(middle, low, high)


def _values_outside(count: int, confidence: float) -> int | None:
    """Count the values on each side that an interval of this confidence may leave out.

    The median lies below the k-th smallest value as often as fewer than k of `count` coins show
    heads. None where even the two outermost values are not wide enough.
    """
    outside, below = None, 0.0
    for heads in range(count // 2):
        below += math.comb(count, heads) / 2**count
        if 2 * below > 1 - confidence:
            break
        outside = heads
    return outside
