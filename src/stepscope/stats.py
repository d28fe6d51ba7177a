"""Statistics on plain lists of numbers, with the standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
