"""Ratios of throughputs, and what their intervals support."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal

from stepscope.stats.decide import Ratio
from stepscope.stats.intervals import FEWEST_ROUNDS, t_quantile

# A ratio is the throughput of the other over that of the baseline: above 1 the other is faster.
# Throughputs are compared by their logarithms, because noise is multiplicative, and so that the
# answer does not depend on which of the two is the baseline.

Tie = Literal["tied", "worse", "undecided"]


MOST_ROUNDS = 200
_POWER = 0.8
# The ratio of equal figures may differ from 1 in its last digits.
_ROUNDING = 1e-9


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
