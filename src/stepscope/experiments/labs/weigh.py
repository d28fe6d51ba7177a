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


def time_ratio(without_s: Sequence[float], with_s: Sequence[float]) -> float | None:
    """Return by what a step's time is multiplied; None where no step was timed."""
    if not without_s or not with_s:
        return None
    return median(with_s) / median(without_s)
