"""The clock of all timings, and the cost of reading it.

`perf_counter` is monotonic and, on Linux and macOS, one clock for all processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stepscope.stats.intervals import median

now_ns: Callable[[], int] = time.perf_counter_ns
# A second clock to check the first: the accounted share compares sums of one with pairs of the
# other.
other_clock_ns: Callable[[], int] = time.monotonic_ns

# CPU time of the process that makes a batch. In a worker it is the process's, because decoding
# libraries start threads. In the training process it is the thread's, because torch's other threads
# still spin after an operation; it is also faster to read.
worker_cpu_ns: Callable[[], int] = time.process_time_ns
own_cpu_ns: Callable[[], int] = time.thread_time_ns

# Size of a copy that exceeds the caches of a core.
_CACHE_BYTES = 4 * 2**20


def seconds(nanoseconds: int) -> float:
    """Convert nanoseconds to seconds."""
    return nanoseconds * 1e-9


def resolution_s(readings: int = 2000) -> float:
    """Measure the smallest observed increment of the clock."""
    smallest = 1_000_000_000
    for _ in range(readings):
        before = after = now_ns()
        while after == before:
            after = now_ns()
        smallest = min(smallest, after - before)
    return seconds(smallest)


def cost_amid_work_ns(work: Callable[[], object], repeats: int = 100) -> float:
    """Measure the median cost of one call after other work has evicted the caches."""
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
    """Do nothing: the baseline of a call."""
