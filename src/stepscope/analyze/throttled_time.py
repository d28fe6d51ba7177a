"""How much of a run was throttled, and what did that cost?

Neighbouring steps are correlated, so the medians of blocks of neighbours are compared, with their
place in the run: a training that gets slower for another reason is not throttled.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, groupby

from stepscope.analyze.phase_shares import counted_steps
from stepscope.records.run_reader import Run
from stepscope.records.throttled_steps import watched_sources
from stepscope.records.types import SlowdownFigures, ThrottlingFigures
from stepscope.stats.decide import TimedRate, contrast_of_sets
from stepscope.stats.intervals import median, medians_of_blocks
from stepscope.units import format_share

_MOST_BLOCKS = 4
_LEAST_STEPS = 5  # per block
_MOST_RANGES = 100  # in a summary; the frame of the steps marks all of them


def throttling_of(run: Run, dropped: Sequence[int]) -> tuple[ThrottlingFigures | None, str]:
    """Return the summary's figures on throttling, or None and the reason."""
    watched = watched_sources(run.events)
    if watched is None:
        return None, "throttling was not watched during this run"
    if not watched:
        return None, "no CPU clock, temperature sensor or GPU that reports throttling"
    steps, marked = run.steps, run.throttled
    if not len(steps):
        return None, "no step was finished"
    ranges = throttled_ranges(run)
    kept = counted_steps(steps, dropped)
    return {
        "watched": watched,
        "steps": marked.count(True),
        "share_of_steps": marked.count(True) / len(marked),
        "share_of_time": share_of_time(run),
        "ranges": [
            {
                "epoch": steps["epoch"][first],
                "first_step": steps["step"][first],
                "last_step": steps["step"][last],
            }
            for first, last in ranges[:_MOST_RANGES]
        ],
        "more_ranges": max(0, len(ranges) - _MOST_RANGES),
        "slowdown": slowdown(list(compress(steps["step_s"], kept)), list(compress(marked, kept))),
    }, ""


def throttled_ranges(run: Run) -> list[tuple[int, int]]:
    """List the first and the last row of throttled steps that follow one another in an epoch."""
    found, at = [], 0
    for (mark, _), rows in groupby(zip(run.throttled, run.steps["epoch"], strict=True)):
        first, at = at, at + sum(1 for _ in rows)
        if mark:
            found.append((first, at - 1))
    return found


def share_of_time(run: Run) -> float | None:
    """Return the share of the steps' time that was throttled; None if unknown."""
    known = [mark is not None for mark in run.throttled]
    all_s = sum(compress(run.steps["step_s"], known))
    return sum(compress(run.steps["step_s"], run.throttled)) / all_s if all_s else None


def slowdown(step_s: Sequence[float], marked: Sequence[bool | None]) -> SlowdownFigures | None:
    """Compare the throttled steps with the others; None if there are none of either."""
    inside, outside = (
        [
            (took_s, float(place))
            for place, (took_s, mark) in enumerate(zip(step_s, marked, strict=True))
            if mark is wanted and took_s
        ]
        for wanted in (True, False)
    )
    ratio = contrast_of_sets(_blocks(outside), _blocks(inside))
    if ratio is None:
        return None
    return {
        "median_s": median([took_s for took_s, _ in inside]),
        "others_median_s": median([took_s for took_s, _ in outside]),
        "ratio": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
    }


def throttled_on_one_side(baseline: Sequence[Run], other: Sequence[Run]) -> str | None:
    """Return a warning if only the runs of one side were throttled, or may have been."""
    ours, theirs = ([share_of_time(run) for run in side] for side in (baseline, other))
    if any(ours) == any(theirs):
        return None
    return (
        f"throttled in {_in_how_many(theirs)}, the baseline in {_in_how_many(ours)}: "
        "the machine's cooling or power supply may be the difference"
    )


def _in_how_many(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    if not known:
        return "runs without a record of it"
    throttled = [share for share in known if share]
    if not throttled:
        return f"none of {len(known)} runs"
    most = format_share(max(throttled))
    return f"{len(throttled)} of {len(known)} runs, for up to {most} of the time"


def _blocks(steps: Sequence[TimedRate]) -> list[TimedRate]:
    """Return blocks of neighbouring steps: the median of their times and their place in the run."""
    blocks = min(_MOST_BLOCKS, max(1, len(steps) // _LEAST_STEPS), len(steps))
    columns = [medians_of_blocks(column, blocks) for column in zip(*steps, strict=True)]
    return list(zip(*columns, strict=True))
