"""Findings on memory: growth and swapping."""

from __future__ import annotations

import shlex
from bisect import bisect_left, bisect_right
from itertools import pairwise

from stepscope.analyze.findings.finding import Finding, RunView
from stepscope.units import format_bytes, format_share

_FEWEST_EPOCHS = 4
_GROWTH_BYTES = 16 * 2**20  # per epoch
_GROWTH_SHARE = 0.01
_SWAPPED_BYTES = 32 * 2**20


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
        None,
        min(1.0, (later[-1] - later[0]) / later[0]),
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
    for row in view.run.epochs.rows():
        if row["split"] != "train" or row["total_s"] is None:
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
