"""Is one setting faster than another? The ratio of their throughputs, and its interval.

A ratio is the throughput of the other over that of the baseline: above 1 the other is faster.
Throughputs are compared by their logarithms, because noise is multiplicative, and so that the
answer does not depend on which of the two is the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final, Literal

from stepscope.stats.intervals import FEWEST_ROUNDS, t_quantile

Verdict = Literal["faster", "slower", "no difference detected", "cannot tell"]
Tie = Literal["tied", "worse", "undecided"]

FASTER: Final = "faster"
SLOWER: Final = "slower"
NO_DIFFERENCE: Final = "no difference detected"
CANNOT_TELL: Final = "cannot tell"

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


def rounds_needed(
    noise: float,
    slowdown: float = 0.05,
    power: float = 0.8,
    confidence: float = 0.95,
    most: int = 200,
) -> int | None:
    """Return the rounds that detect a slowdown in a share `power` of cases; None above `most`."""
    for rounds in range(FEWEST_ROUNDS, most + 1):
        # The interval excludes 1, at the quantile of the mean that a share `power` exceeds.
        width = t_quantile(rounds - 1, confidence) + t_quantile(rounds - 1, 2 * power - 1)
        if width * noise / math.sqrt(rounds) <= -math.log1p(-slowdown):
            return rounds
    return None
