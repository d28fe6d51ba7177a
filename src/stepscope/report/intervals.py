"""Intervals that can be drawn: two runs on a busy machine leave one from 0 to a thousandfold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stepscope.report.charts import Mark
from stepscope.stats import Interval

_MOST_TIMES = 4  # the largest value; beyond, all values would lie on the axis


def with_interval(
    x: float | str, found: Interval, series: str = "", times: float = 1, *, chosen: bool = False
) -> Mark:
    """Make a mark of a median and its interval."""
    low, high = (None if end is None else end * times for end in (found.low, found.high))
    return Mark(x, found.median * times, series, low=low, high=high, chosen=chosen)


def drawable(marks: Iterable[Mark]) -> tuple[list[Mark], str]:
    """Leave out intervals that would flatten a chart; return a note that says so, or nothing."""
    given = list(marks)
    most = max((mark.y for mark in given), default=0.0) * _MOST_TIMES
    kept = [
        replace(mark, low=None, high=None) if mark.high is not None and mark.high > most else mark
        for mark in given
    ]
    left_out = sum(ours is not theirs for ours, theirs in zip(kept, given, strict=True))
    if not left_out:
        return kept, ""
    return (
        kept,
        f"{left_out} of {len(given)} intervals are too wide to be drawn: more rounds would tell",
    )
