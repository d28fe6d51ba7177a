"""The clock that everything is timed with, and what reading it costs.

`perf_counter` is monotonic and, on Linux and macOS, one clock for all processes: a worker's times
and the training's can be laid side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stepscope.stats import median

now_ns: Callable[[], int] = time.perf_counter_ns
# A clock apart, to check the first by: closure compares sums of one with pairs of the other.
other_clock_ns: Callable[[], int] = time.monotonic_ns

# CPU time of who makes a batch. A worker's is its process's: decoding libraries start threads of
# their own. In the training process it is this thread's, since torch's other threads still spin
# after an operation; and the kernel tells it sooner.
worker_cpu_ns: Callable[[], int] = time.process_time_ns
own_cpu_ns: Callable[[], int] = time.thread_time_ns

# Copied from one place to another: more than the caches of a core hold.
_CACHE_BYTES = 4 * 2**20


def seconds(nanoseconds: int) -> float:
    """Convert from the clock's unit to the record's."""
    return nanoseconds * 1e-9


def resolution_s(readings: int = 2000) -> float:
    """Measure the smallest step by which the clock is seen to move."""
    smallest = 1_000_000_000
    for _ in range(readings):
        before = after = now_ns()
        while after == before:
            after = now_ns()
        smallest = min(smallest, after - before)
    return seconds(smallest)


def cost_ns(work: Callable[[], object], repeats: int = 2000) -> float:
    """Measure what one call costs: the least mean of five rounds, so that noise is left out."""
    best = float("inf")
    for _ in range(5):
        start = now_ns()
        for _ in range(repeats // 5):
            work()
        best = min(best, (now_ns() - start) / (repeats // 5))
    return best


def cost_amid_work_ns(work: Callable[[], object], repeats: int = 100) -> float:
    """Measure what one call costs in a training, where other work has taken the caches before it.

    That is several times what it costs again and again. It is the median, less that of nothing.
    """
    filling = bytes(_CACHE_BYTES)
    caches = memoryview(bytearray(_CACHE_BYTES))
    took_ns: dict[Callable[[], object], list[int]] = {work: [], _nothing: []}
    for _ in range(repeats):
        for each, times_ns in took_ns.items():
            caches[:] = filling
            begin_ns = now_ns()
            each()
            times_ns.append(now_ns() - begin_ns)
    return max(0.0, median(took_ns[work]) - median(took_ns[_nothing]))


def _nothing() -> None:
    """Do nothing, for as long as a call takes."""
