"""Findings on the machine while the run had it: its CPUs, throttling, memory."""

from __future__ import annotations

import math
import shlex
from bisect import bisect_left, bisect_right
from itertools import compress, pairwise

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.analyze.machine_load import cpu_use
from stepscope.analyze.throttled_time import slowdown
from stepscope.records.throttled_steps import ThrottledTime, throttled_times
from stepscope.units import format_bytes, format_duration, format_share

_SHORTEST_S = 2.0
_MOST_DESCRIBED = 5  # throttled times to describe
_FEWEST_EPOCHS = 4
_GROWTH_BYTES = 16 * 2**20  # per epoch
_GROWTH_SHARE = 0.01
_SWAPPED_BYTES = 32 * 2**20


def busy_machine(view: RunView) -> Finding | None:
    """Report other programs that took CPU time which the run could have used."""
    starts_s = view.column("start_s")
    use = cpu_use(view.run, starts_s[0], starts_s[-1] + view.step_s[-1])
    if use is None or use.took_s < _SHORTEST_S or not use.disturbs:
        return None
    others_s = use.others_share * use.took_s * use.cpus
    return Finding(
        "busy_machine",
        f"Other programs used {format_share(use.others_share)} of the CPU while this ran, so the "
        "timings cannot be trusted.",
        (
            f"{format_duration(others_s)} of CPU time by other programs in "
            f"{format_duration(use.took_s)} on {use.cpus} CPUs",
        ),
        weight=use.others_share,
        change="run it again on an idle machine",
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


# --- Memory


def growing_memory(view: RunView) -> Finding | None:
    """Report memory that grows in every epoch."""
    ends = _at_ends_of_epochs(view)
    if len(ends) < _FEWEST_EPOCHS:
        return None
    later = ends[1:]  # the first epoch fills caches
    growths = [after - before for before, after in pairwise(later)]
    mean = sum(growths) / len(growths)
    if min(growths) <= 0 or mean < max(_GROWTH_BYTES, _GROWTH_SHARE * later[0]):
        return None
    return Finding(
        "growing_memory",
        f"Memory grows by {format_bytes(mean)} per epoch and never falls: a long run will run out "
        "of memory. Look for tensors that are kept, such as losses with their graph.",
        tuple(f"end of epoch {number}: {format_bytes(end)}" for number, end in enumerate(ends, 1)),
        weight=min(1.0, (later[-1] - later[0]) / later[0]),
    )


def _at_ends_of_epochs(view: RunView) -> list[int]:
    """Return the process's memory at the end of each training epoch; [] if not sampled."""
    telemetry = view.run.telemetry
    sampled = [
        (time_s, size)
        for time_s, size in zip(telemetry["time_s"], telemetry["rss_bytes"], strict=True)
        if size is not None
    ]
    times = [time_s for time_s, _ in sampled]
    ends = []
    for row in view.trained:
        if row["start_s"] is None or row["total_s"] is None:
            continue
        first = bisect_left(times, row["start_s"])
        after = bisect_right(times, row["start_s"] + row["total_s"])
        if after <= first:
            return []
        ends.append(sampled[after - 1][1])
    return ends


def swapping(view: RunView) -> Finding | None:
    """Report that memory of the run was swapped out."""
    telemetry = view.run.telemetry
    swapped = [size for size in telemetry["swap_bytes"] if size is not None]
    if not swapped or max(swapped) - swapped[0] < _SWAPPED_BYTES:
        return None
    faults = [count for count in telemetry["major_faults"] if count is not None]
    evidence = [f"up to {format_bytes(max(swapped))} in swap"]
    if faults:
        evidence.append(f"{max(faults) - faults[0]:,} pages were read back from disk")
    total = view.run.info.get("environment", {}).get("memory_bytes")
    if total:
        evidence.append(f"{format_share(max(swapped) / total)} of the machine's memory")
    spec = view.run.spec
    command = None
    if view.run.info.get("kind") == "run" and {"model", "batch_size"} <= spec.keys():
        batch = ["--batch-size", str(spec["batch_size"])]
        command = shlex.join(["stepscope", "memory", str(spec["model"]), *batch])
    return Finding(
        "swapping",
        "Memory of the run was swapped out: steps that use it wait for a disk.",
        tuple(evidence),
        command,
        0.5,
    )
