"""Any number of values as few buckets, whose extremes stay: what a chart can show.

A bucket is a run of neighbouring rows. Buckets depend on the number of rows alone, so columns of
one table fall into the same ones and can be stacked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MOST_BUCKETS = 400  # about as many as a chart has dots to tell them apart


@dataclass(frozen=True)
class Bucket:
    """Neighbouring values: where they lie, their mean, the least and the most of them."""

    at: float
    mean: float
    least: float
    most: float


def thin(
    places: Sequence[float], values: Sequence[Any], most: int = MOST_BUCKETS
) -> Iterator[Bucket]:
    """Reduce values to at most so many buckets; one in which no value is known is left out.

    `places` are where the values lie, in their order. Unknown, infinite and undefined values do not
    count. Costs one pass.
    """
    for begin, end in _bounds(len(places), most):
        known, total = _known(values[begin:end])
        if known:
            least, greatest = min(known), max(known)
            # Rounding can push a mean of equal values past them.
            mean = min(max(total / len(known), least), greatest)
            yield Bucket((places[begin] + places[end - 1]) / 2, mean, least, greatest)


def _bounds(rows: int, most: int) -> Iterator[tuple[int, int]]:
    buckets = min(rows, most)
    for number in range(buckets):
        yield number * rows // buckets, (number + 1) * rows // buckets


def _known(values: Sequence[Any]) -> tuple[Sequence[float], float]:
    """Return the values that count, and their sum, which tells whether all of them do."""
    try:
        total = sum(values)
        if math.isfinite(total):
            return values, total
    except TypeError:  # an unknown one among them
        pass
    known = [value for value in values if value is not None and math.isfinite(value)]
    return known, math.fsum(known)
