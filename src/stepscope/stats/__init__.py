"""Statistics on plain lists of numbers, with the standard library only.

The run is the unit: what goes in here is one figure a run, never one a step. Steps of one run
resemble each other, and runs differ by more than their steps tell.

    quantiles   median, mean, quantile, and the interval of one setting's median
    ratios      one setting against another: ratio, interval, verdict
    power       how many rounds it takes to find a slowdown
    student     the quantiles of Student's t on which the intervals stand
"""

from stepscope.stats.intervals import (
    Interval,
    interval_of,
    known_mean,
    known_median,
    median,
    quantile,
    t_quantile,
)
from stepscope.stats.ratios import (
    CANNOT_TELL,
    FASTER,
    NO_DIFFERENCE,
    SLOWER,
    Ratio,
    confidence_of_each,
    ratio_of_rounds,
    ratio_of_sets,
    tie,
    verdict,
)
from stepscope.stats.sample_size import rounds_needed

__all__ = [
    "CANNOT_TELL",
    "FASTER",
    "NO_DIFFERENCE",
    "SLOWER",
    "Interval",
    "Ratio",
    "confidence_of_each",
    "interval_of",
    "known_mean",
    "known_median",
    "median",
    "quantile",
    "ratio_of_rounds",
    "ratio_of_sets",
    "rounds_needed",
    "t_quantile",
    "tie",
    "verdict",
]
