"""Set two kinds of trial against each other: what one saved, and whether that is a difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.stats import median


@dataclass(frozen=True)
class Saving:
    """The median of what was saved round by round, and how far the rounds lie apart."""

    saved_bytes: int
    spread_bytes: int

    @property
    def differs(self) -> bool:
        """Whether what was saved, or lost, is more than the rounds differ by."""
        return abs(self.saved_bytes) > self.spread_bytes


def saving(without_bytes: Sequence[int], with_bytes: Sequence[int]) -> Saving:
    """Compare peaks of trials that were made in turns, without and with a change."""
    saved = [before - after for before, after in zip(without_bytes, with_bytes, strict=True)]
    return Saving(round(median(saved)), max(saved) - min(saved))


@dataclass(frozen=True)
class Cost:
    """By what a step's time is multiplied: the median of the rounds, and how far they lie apart."""

    ratio: float
    spread: float

    @property
    def differs(self) -> bool:
        """Whether a step takes longer, or less long, by more than the rounds differ by."""
        return abs(self.ratio - 1) > self.spread


def cost(without_s: Sequence[Sequence[float]], with_s: Sequence[Sequence[float]]) -> Cost:
    """Compare the steps of trials that were made in turns: round by round, by their medians."""
    ratios = [
        median(after) / median(before) for before, after in zip(without_s, with_s, strict=True)
    ]
    return Cost(median(ratios), max(ratios) - min(ratios))
