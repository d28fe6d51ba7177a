"""Would a training keep its pace? While it takes batches that were prefetched, it waits for none.

A slow first step lets the workers fill their queue, and a loader near its capacity needs many steps
to drain it. The pace of such steps is not that of the steps to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from stepscope.records.table import Table


def slowdown_without_queue(steps: Table, rows: Sequence[int], workers: int, prefetch: int) -> float:
    """Return how many times as long these steps of one epoch take once the queue is empty.

    Batch by batch, the time between a batch's completion and its use is how far the loader is
    ahead. Over the rows it makes up for the time in which the loader makes as many batches as the
    training uses. Where workers had nothing to do, the loader could have made more of them.
    """
    turns = len(rows) // workers if workers else 0
    if turns < 2:
        return 1.0
    epoch = steps["epoch"][rows[0]]
    first = rows[0]
    while first and steps["epoch"][first - 1] == epoch:
        first -= 1
    window = range(first, rows[-1] + 1)
    columns = [steps[name] for name in ("start_s", "data_s", "load_start_s", "load_s")]
    timed = [tuple(column[row] for column in columns) for row in window]
    if any(None in times for times in timed):
        return 1.0
    used_s = [start_s + data_s for start_s, data_s, _, _ in timed]
    made_s = [begin_s + load_s for _, _, begin_s, load_s in timed]
    ready_s = list(accumulate(made_s, max))  # batches are used in order
    # Batches of a turn may come in a burst: each is compared with that of the same place.
    span = (turns - 1) * workers
    begins = range(rows[0] - first, rows[0] - first + workers)
    loader_s = fmean(ready_s[at + span] - ready_s[at] for at in begins)
    training_s = fmean(used_s[at + span] - used_s[at] for at in begins)
    # The next batch is asked of a worker when one of its batches is used.
    asked = prefetch * workers
    idle_s = sum(
        max(0.0, used_s[at - asked] - made_s[at - workers])
        for at in range(begins[-1] + 1, begins[-1] + 1 + span)
        if at >= asked
    )
    busy_s = loader_s - idle_s / workers
    return max(1.0, busy_s / training_s) if training_s else 1.0
