"""The memory bill of a run: its items, and the limit of each pool.

Parameters, gradients, state and activations have their largest size, but are never all allocated at
once. `slack` is what the allocator keeps beyond their largest sum: the items add up to the peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stepscope.hardware import host

# From sizes alone, in the training process, by a trial on this machine, or by none of these.
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
        return max(self.limits, key=self.filled_share)

    def filled_share(self, pool: Pool) -> float:
        """Return the used share of a pool; above 1 the run does not fit."""
        return self.pool_bytes(pool) / max(1, self.limits[pool].bytes)

    @property
    def fits(self) -> bool:
        """Whether the run fits into every pool."""
        return all(map(self.fits_into, self.limits))

    def fits_into(self, pool: Pool, share: float = 1.0) -> bool:
        """Return whether the run fits into a share of a pool."""
        return self.pool_bytes(pool) <= share * self.limits[pool].bytes


def memory_limits(
    asked_bytes: int | None, workers: int, device: Limit | None = None, *, unified: bool = False
) -> dict[Pool, Limit]:
    """Return the limit of each pool; `unified` says that host and device share one memory."""
    limits: dict[Pool, Limit] = {"host": host_limit(asked_bytes)}
    if device is not None and unified:
        limits = {"unified": min(limits["host"], device, key=lambda limit: limit.bytes)}
    elif device is not None:
        limits["device"] = device
    # Workers pass batches through shared memory.
    if workers and (shared := host.shared_memory_free_bytes()):
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
