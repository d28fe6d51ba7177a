"""Statistics on plain lists of numbers, with the standard library only.

The run is the unit: values are one per run, never one per step. Steps of one run are correlated,
and runs differ by more than their steps show.
"""

from stepscope.stats.intervals import (
    FEWEST_ROUNDS,
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
    rounds_needed,
    tie,
    verdict,
)

__all__ = [
    "CANNOT_TELL",
    "FASTER",
    "FEWEST_ROUNDS",
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
