"""Findings on the course of a run: start-up, outliers, drift, throttling, inferred steps."""

from __future__ import annotations

import math
from collections import Counter
from itertools import compress

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.analyze.throttled_time import slowdown
from stepscope.records import schema
from stepscope.records.throttled_steps import ThrottledTime, throttled_times
from stepscope.stats import median, quantile
from stepscope.units import format_duration, format_share

_MUCH_START_UP = 0.2  # share of a later epoch
_LATER_EPOCHS = 2
_FAR = 3.0  # multiple of the median
_MUCH_FAR = 0.03  # share of the time
_AT_LEAST_FAR = 3
_NEAR_S = 1.0
_THIRD = 20  # steps in each third, for a comparison
_DRIFT = 0.1
_MOST_DESCRIBED = 5  # throttled times to describe


def start_up(view: RunView) -> Finding | None:
    """Report the cost of the first epoch beyond that of a later one."""
    trained = [row for row in view.run.epochs.rows() if row["split"] == "train" and row["total_s"]]
    if len(trained) < 1 + _LATER_EPOCHS:
        return None
    first, later = trained[0], trained[1:]
    later_s = median([row["total_s"] for row in later])
    longest_s = max(row["total_s"] for row in later)
    extra_s = first["total_s"] - later_s
    if extra_s < _MUCH_START_UP * later_s or first["total_s"] <= longest_s:
        return None
    starts_s = median([row["loader_start_s"] for row in later])
    return Finding(
        "start_up",
        f"The first epoch takes {format_duration(extra_s)} longer than the others. It is excluded "
        "from medians and shares.",
        (
            f"epoch 1: {format_duration(first['total_s'])}; later epochs: "
            f"{format_duration(later_s)} (median of {len(later)})",
            f"loader start: {format_duration(first['loader_start_s'])}; later "
            f"{format_duration(starts_s)}",
        ),
        None,
        extra_s / sum(row["total_s"] for row in trained),
    )


def far_steps(view: RunView) -> Finding | None:
    """Report the time of steps far above the median, and the events during them."""
    limit_s = _FAR * view.median_s
    far = [number for number, took_s in enumerate(view.step_s) if took_s > limit_s]
    share = sum(view.step_s[number] - view.median_s for number in far) / sum(view.step_s)
    if len(far) < _AT_LEAST_FAR or share < _MUCH_FAR:
        return None
    phases: Counter[str] = Counter()
    for phase in schema.PHASES:
        values = view.column(f"{phase}_s")
        usual = median(values)
        phases[phase] = sum(max(0.0, values[number] - usual) for number in far)
    phase, excess_s = phases.most_common(1)[0]
    starts = view.column("start_s")
    times = [(starts[number] - _NEAR_S, starts[number] + view.step_s[number]) for number in far]
    events = Counter(
        event["event"]
        for event in view.run.events
        if any(begin_s <= event["time_s"] <= end_s for begin_s, end_s in times)
    )
    return Finding(
        "far_steps",
        f"{len(far)} outlier steps take {format_share(share)} of the time, mostly in `{phase}`.",
        (
            f"{len(far)} of {len(view.step_s)} steps take over {_FAR:g} times the median of "
            f"{format_duration(view.median_s)}; the longest takes "
            f"{format_duration(max(view.step_s))}",
            f"{format_share(excess_s / sum(phases.values()))} of their excess is in `{phase}`",
            *(f"{count} `{name}` events at those times" for name, count in events.items()),
        ),
        None,
        share,
    )


def drift(view: RunView) -> Finding | None:
    """Report steps that got slower, or faster, from the first third to the last."""
    third = len(view.step_s) // 3
    if third < _THIRD:
        return None
    first, last = sorted(view.step_s[:third]), sorted(view.step_s[-third:])
    first_s, last_s = median(first), median(last)
    # Where the interquartile ranges of the thirds overlap, the difference may be noise.
    slower = quantile(last, 0.25) > quantile(first, 0.75)
    faster = quantile(last, 0.75) < quantile(first, 0.25)
    if not first_s or not (slower or faster) or abs(last_s / first_s - 1) < _DRIFT:
        return None
    return Finding(
        "drift",
        f"Steps get {'slower' if slower else 'faster'} during the run: the last third takes "
        f"{last_s / first_s:.2f} times as long as the first, so one figure describes neither.",
        (
            f"first third: {format_duration(first_s)}, last third: {format_duration(last_s)} "
            f"(medians of {third} steps)",
        ),
        None,
        min(1.0, abs(last_s / first_s - 1)),
    )


def throttling(view: RunView) -> Finding | None:
    """Report the steps during which heat or a limit slowed the machine down."""
    marked = view.throttled
    if not any(marked):
        return None
    times = throttled_times(view.run.events)
    share = sum(compress(view.step_s, marked)) / sum(view.step_s)
    evidence = [_described(each) for each in times[:_MOST_DESCRIBED]]
    if len(times) > _MOST_DESCRIBED:
        evidence.append(f"and {len(times) - _MOST_DESCRIBED} more in events.jsonl")
    if (cost := slowdown(view.step_s, marked)) is not None:
        slow_s, free_s = format_duration(cost["median_s"]), format_duration(cost["others_median_s"])
        evidence.append(f"those steps take {slow_s}, the others {free_s} (medians)")
    return Finding(
        "throttling",
        f"The machine was throttled during {marked.count(True):,} of {len(marked):,} steps, "
        f"{format_share(share)} of the time: check its cooling and power supply.",
        tuple(evidence),
        "stepscope doctor",
        share,
    )


def inferred_steps(view: RunView) -> Finding | None:
    """Report steps that were inferred: the script has no optimiser of torch."""
    summary = view.run.summary
    if not summary.get("steps_inferred"):
        return None
    return Finding(
        "inferred_steps",
        "The steps are inferred: no torch optimiser stepped, but weights changed after backward "
        "passes.",
        (f"optimizer_s: {(summary.get('absent') or {}).get('optimizer_s', 'not measured')}",),
        None,
        0.0,
    )


def _described(time: ThrottledTime) -> str:
    """Describe a throttled time: `at 12.3 s for 4.1 s: clock from 1,479 to 921 MHz`."""
    lasted = "until the end"
    if math.isfinite(time.to_s):
        lasted = f"for {format_duration(time.to_s - time.from_s)}"
    began = time.began
    text = f"at {format_duration(time.from_s)} {lasted}: {began['what']}"
    before, after = began.get("from"), began.get("to")
    if before is not None and after is not None:
        text += f" from {before:,g} to {after:,g} {began.get('unit') or ''}"
    if began.get("reasons"):
        text += f" by {began['reasons']}"
    return text.rstrip()
