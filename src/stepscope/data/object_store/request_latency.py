"""A histogram of request latencies, in memory shared by the training and its loader workers.

Each process has a separate row: no locks are needed, and a killed worker damages no other row.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate

import torch
from torch.utils.data import get_worker_info

from stepscope.data.object_store.store_client import RequestStats
from stepscope.records.types import RequestLatency

OnRetry = Callable[[RequestStats], None]

_SHORTEST_S = 1e-5
_GROWTH = 1.02
_BUCKETS = 1024  # up to two hours
_BYTES, _RETRIES, _TIME_NS = _BUCKETS, _BUCKETS + 1, _BUCKETS + 2


class RequestTimes:
    """Counts of requests by latency; `on_retry` receives the requests that were retried."""

    def __init__(self, workers: int = 0, on_retry: OnRetry | None = None) -> None:
        """Allocate rows for the training process and its loader workers."""
        self._on_retry = on_retry
        # Shared tensors work with every start method of workers.
        self._table = torch.zeros(workers + 1, _BUCKETS + 3, dtype=torch.int64).share_memory_()

    def add(self, stats: RequestStats) -> None:
        """Add some requests of this process."""
        worker = get_worker_info()
        row = self._table[0 if worker is None else worker.id + 1].numpy()
        for time_s in stats.times_s:
            bucket = math.log(max(time_s, _SHORTEST_S) / _SHORTEST_S) / math.log(_GROWTH)
            row[min(int(bucket), _BUCKETS - 1)] += 1
        row[_TIME_NS] += round(sum(stats.times_s) * 1e9)
        row[_BYTES] += stats.bytes
        row[_RETRIES] += stats.retries
        if stats.retries and self._on_retry is not None:
            self._on_retry(stats)

    def counts(self) -> list[int]:
        """Return all counts, summed over the processes."""
        return [int(count) for count in self._table.sum(dim=0).tolist()]


def summarize(all_counts: Iterable[list[int]]) -> RequestLatency | None:
    """Return the number of requests, their bytes and latencies (to 1 %); None without requests."""
    total = [sum(column) for column in zip(*all_counts, strict=True)]
    requests = sum(total[:_BUCKETS])
    if not requests:
        return None
    return {
        "count": requests,
        "retries": total[_RETRIES],
        "bytes": total[_BYTES],
        "mean_s": total[_TIME_NS] * 1e-9 / requests,
        "p50_s": _percentile(total[:_BUCKETS], 0.5),
        "p90_s": _percentile(total[:_BUCKETS], 0.9),
        "p95_s": _percentile(total[:_BUCKETS], 0.95),
        "p99_s": _percentile(total[:_BUCKETS], 0.99),
        "max_s": _percentile(total[:_BUCKETS], 1.0),
    }


def _percentile(counts: list[int], share: float) -> float:
    """Return the middle of the bucket that contains the percentile."""
    rank = max(1, math.ceil(share * sum(counts)))
    bucket = bisect_left(list(accumulate(counts)), rank)
    return _SHORTEST_S * math.pow(_GROWTH, bucket + 0.5)
