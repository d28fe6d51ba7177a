"""A finding on a machine that held itself back while it was measured."""

from __future__ import annotations

import math
from itertools import compress

from stepscope.analyze.findings.finding import Finding
from stepscope.analyze.findings.run_view import Look
from stepscope.analyze.throttled_time import slowdown
from stepscope.records.throttled_steps import Held, times_held_back
from stepscope.units import format_duration, format_share

_TELLING = 5  # times that are described


def throttling(look: Look) -> Finding | None:
    """Say how many steps fell into times when heat or a limit slowed the machine down."""
    marked = look.throttled
    if not any(marked):
        return None
    held = times_held_back(look.run.events)
    share = sum(compress(look.step_s, marked)) / sum(look.step_s)
    evidence = [_told(each) for each in held[:_TELLING]]
    if len(held) > _TELLING:
        evidence.append(f"and {len(held) - _TELLING} more in events.jsonl")
    if (cost := slowdown(look.step_s, marked)) is not None:
        slow_s, free_s = format_duration(cost.median_s), format_duration(cost.others_median_s)
        evidence.append(f"those steps take {slow_s}, the others {free_s} (medians)")
    return Finding(
        "throttling",
        f"The machine held itself back during {marked.count(True):,} of {len(marked):,} steps, "
        f"{format_share(share)} of the time: they say less about the training than about its "
        "cooling or power supply.",
        tuple(evidence),
        "stepscope doctor",
        share,
    )


def _told(held: Held) -> str:
    """Say what was read: `at 12.3 s for 4.1 s: clock from 1,479 to 921 MHz`."""
    lasted = "until the end"
    if math.isfinite(held.to_s):
        lasted = f"for {format_duration(held.to_s - held.from_s)}"
    figures = held.figures
    told = f"at {format_duration(held.from_s)} {lasted}: {held.what}"
    if figures.get("from") is not None and figures.get("to") is not None:
        told += f" from {figures['from']:,g} to {figures['to']:,g} {figures.get('unit') or ''}"
    if figures.get("reasons"):
        told += f" by {figures['reasons']}"
    return told.rstrip()
