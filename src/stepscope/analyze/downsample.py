"""Reduce any number of values to buckets of neighbours that keep their extremes, for charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MOST_BUCKETS = 400  # about the number of points that a chart can resolve


@dataclass(frozen=True)
class Bucket:
    """Neighbouring values: their position, mean, minimum and maximum."""

    at: float
    mean: float
    least: float
    most: float


def thin(
    places: Sequence[float], values: Sequence[Any], most: int = MOST_BUCKETS
) -> Iterator[Bucket]:
    """Reduce values to buckets at their `places`; unknown, infinite and NaN values do not count."""
    buckets = min(len(places), most)
    for number in range(buckets):
        begin, end = (n * len(places) // buckets for n in (number, number + 1))
        known, total = _known(values[begin:end])
        if known:
            least, greatest = min(known), max(known)
            # Rounding can push the mean of equal values past them.
            mean = min(max(total / len(known), least), greatest)
            yield Bucket((places[begin] + places[end - 1]) / 2, mean, least, greatest)


def _known(values: Sequence[Any]) -> tuple[Sequence[float], float]:
    """Return the values that count, and their sum, which is finite if all of them do."""
    try:
        total = sum(values)
        if math.isfinite(total):
            return values, total
    except TypeError:  # one of them is None
        pass
    known = [value for value in values if value is not None and math.isfinite(value)]
    return known, math.fsum(known)
