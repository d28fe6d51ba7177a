"""A finding on a machine that held itself back while it was measured."""

from __future__ import annotations

import math
from itertools import compress

from stepscope.analyze.findings.finding import Finding
from stepscope.analyze.findings.look import Look
from stepscope.analyze.throttling import Held, times_held_back, touched
from stepscope.stats import median
from stepscope.units import format_duration, format_share

_TELLING = 5  # times that are described


def throttling(look: Look) -> Finding | None:
    """Say how many steps fell into times when heat or a limit slowed the machine down."""
    held = times_held_back(look.run)
    if not held:
        return None
    marked = touched(look.column("start_s"), look.step_s, held)
    share = sum(compress(look.step_s, marked)) / sum(look.step_s)
    if not any(marked):
        return None
    evidence = [_told(each) for each in held[:_TELLING]]
    if len(held) > _TELLING:
        evidence.append(f"and {len(held) - _TELLING} more in events.jsonl")
    free = list(compress(look.step_s, [not each for each in marked]))
    if free:
        slow_s, free_s = median(list(compress(look.step_s, marked))), median(free)
        evidence.append(
            f"those steps take {format_duration(slow_s)}, the others {format_duration(free_s)} "
            "(medians)"
        )
    return Finding(
        "throttling",
        f"The machine held itself back during {sum(marked):,} of {len(marked):,} steps, "
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
