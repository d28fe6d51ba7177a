"""The memory bill of a run: its items, and the limit of each pool.

Every item has its method:

    counted      from sizes alone: tensors, samples, batches
    measured     in the training process, before it trains
    calibrated   tried on this machine: a loader worker, an allocator
    assumed      none of these; the note says why

and its pool: `host`, `device`, or `unified` if these share one memory.

Parameters, gradients, state and activations have their largest size. They are never all allocated
at once, and the allocator reuses memory; `slack` is what it keeps beyond their largest sum, so that
the items add up to the peak.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stepscope.hardware import host

How = Literal["counted", "measured", "calibrated", "assumed"]
Pool = Literal["host", "device", "unified", "shared memory"]


@dataclass(frozen=True)
class Item:
    """One line of the bill."""

    bytes: int
    how: How
    note: str
    pool: Pool = "host"


@dataclass(frozen=True)
class Limit:
    """The limit of a pool, and its origin."""

    of: str
    bytes: int


@dataclass(frozen=True)
class Bill:
    """The peak memory of a run; every item of `forecast` is in `items`."""

    items: Mapping[str, Item]
    limits: Mapping[Pool, Limit]

    @property
    def total_bytes(self) -> int:
        """The peak of all pools together."""
        return sum(item.bytes for item in self.items.values())

    def pool_bytes(self, pool: Pool) -> int:
        """Return the memory in a pool. Shared memory is part of host memory."""
        if pool == "shared memory":
            return self.items["prefetch"].bytes
        return sum(item.bytes for item in self.items.values() if item.pool == pool)

    @property
    def host_pool(self) -> Pool:
        """The pool of the processes, including loader workers."""
        return "unified" if "unified" in self.limits else "host"

    @property
    def binding(self) -> Pool:
        """The fullest pool."""
        return max(self.limits, key=self._filled_share)

    @property
    def filled_share(self) -> float:
        """The share of the fullest pool that is used; above 1 the run does not fit."""
        return self._filled_share(self.binding)

    @property
    def fits(self) -> bool:
        """Whether the run fits into every pool."""
        return all(self.pool_bytes(pool) <= limit.bytes for pool, limit in self.limits.items())

    def _filled_share(self, pool: Pool) -> float:
        needed_bytes, limit_bytes = self.pool_bytes(pool), self.limits[pool].bytes
        if limit_bytes == 0:
            return math.inf if needed_bytes else 0.0
        return needed_bytes / limit_bytes


# --- Limits


def memory_limits(
    asked_bytes: int | None, workers: int, device: Limit | None = None, *, unified: bool = False
) -> dict[Pool, Limit]:
    """Return the limit of each pool. Workers pass batches through shared memory.

    `device` is the limit of the device; `unified` says that host and device share one memory.
    """
    of_host = host_limit(asked_bytes)
    limits: dict[Pool, Limit]
    if device is None:
        limits = {"host": of_host}
    elif unified:
        limits = {"unified": min(of_host, device, key=lambda limit: limit.bytes)}
    else:
        limits = {"host": of_host, "device": device}
    shared = host.shared_memory_free_bytes() if workers else None
    if shared:
        limits["shared memory"] = Limit("/dev/shm", shared)
    return limits


def host_limit(asked_bytes: int | None) -> Limit:
    """Return the tightest limit of the host's memory."""
    known = {
        "--memory-limit": asked_bytes,
        "control group": host.cgroup_memory_limit_bytes(),
        "physical memory": host.memory_bytes(),
    }
    return min(
        (Limit(of, size) for of, size in known.items() if size is not None),
        key=lambda limit: limit.bytes,
    )
