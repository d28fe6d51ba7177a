"""Which of several things are not beaten in everything at once by another."""

from __future__ import annotations

from collections.abc import Sequence


def front(points: Sequence[tuple[float | None, ...]]) -> list[int]:
    """Return which points are on the Pareto front, where more is better in every figure.

    A point that lacks a figure is not on it; of equal points all are.
    """
    known = {
        index: tuple(value for value in point if value is not None)
        for index, point in enumerate(points)
        if None not in point
    }
    return [
        index
        for index, point in known.items()
        if not any(_beats(other, point) for other in known.values())
    ]


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Say whether one is at least as good in everything, and better in something."""
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))
