"""Findings on the machine: throttling."""

from __future__ import annotations

import math
from itertools import compress

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.analyze.throttled_time import slowdown
from stepscope.records.throttled_steps import ThrottledTime, throttled_times
from stepscope.units import format_duration, format_share

_MOST_DESCRIBED = 5  # throttled times to describe


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
