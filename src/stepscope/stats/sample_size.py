"""How many rounds detect a slowdown? Answered by simulating the experiment many times."""

from __future__ import annotations

import math
from random import Random

from stepscope.stats.intervals import t_quantile

_EXPERIMENTS = 1000  # gives the detected share to about 1.3 %
_SEED = 20


def rounds_needed(
    noise: float,
    slowdown: float = 0.05,
    power: float = 0.8,
    confidence: float = 0.95,
    most: int = 200,
) -> int | None:
    """Return the number of rounds that detects a slowdown in a share `power` of experiments.

    `noise` is the standard deviation of the logarithm of the ratio of two equal runs; `slowdown` is
    the share of the throughput that is lost. It is detected if the whole interval of
    `ratio_of_rounds` is below 1. None if more than `most` rounds are needed. The seed is fixed, so
    that the answer is reproducible.
    """
    if not (noise >= 0 and 0 < slowdown < 1 and 0 < power < 1):
        raise ValueError(
            "wanted a noise of 0 or more, and slowdown and power between 0 and 1, "
            f"found {noise}, {slowdown} and {power}"
        )
    random = Random(_SEED)
    planted = math.log1p(-slowdown)
    sums = [0.0] * _EXPERIMENTS
    squares = [0.0] * _EXPERIMENTS
    # Each iteration adds one round to every experiment, so a small answer is cheap.
    for rounds in range(1, most + 1):
        for each in range(_EXPERIMENTS):
            deviation = random.gauss(0, noise)
            sums[each] += deviation
            squares[each] += deviation * deviation
        if rounds > 1 and _share_found(planted, sums, squares, rounds, confidence) >= power:
            return rounds
    return None


def _share_found(
    planted: float, sums: list[float], squares: list[float], rounds: int, confidence: float
) -> float:
    """Return the share of experiments whose whole interval is below a ratio of 1."""
    width = t_quantile(rounds - 1, confidence) / math.sqrt(rounds * (rounds - 1))
    found = 0
    for total, square in zip(sums, squares, strict=True):
        around_mean = max(0.0, square - total * total / rounds)
        found += planted + total / rounds + width * math.sqrt(around_mean) < 0
    return found / len(sums)
