"""Memory of this process, and of its workers and the batches that they have made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stepscope.hardware import host, process
from stepscope.hardware.process import TreeReading


@dataclass(frozen=True)
class WorkerMemory:
    """Measure workers and their batches, from the creation of this object on.

    Batches are in /dev/shm, which the whole machine shares: what other programs put there since
    counts too. Batches that the training process has mapped are part of its own size.
    """

    _shm_before_bytes: int | None = field(default_factory=host.shared_memory_used_bytes)

    def bytes_of(self, tree: TreeReading) -> int | None:
        """Return the workers' private bytes plus batches in flight; None if sizes are unknown."""
        if tree.workers_private_bytes is None:
            return None
        shm_now = host.shared_memory_used_bytes()
        in_flight = 0
        if shm_now is not None and self._shm_before_bytes is not None:
            in_flight = max(0, shm_now - self._shm_before_bytes - (tree.shared_rss_bytes or 0))
        return tree.workers_private_bytes + in_flight


def give_back() -> None:
    """Return memory that the allocator caches to the system, where possible."""
    process.give_back()


def resident_bytes() -> int:
    """Return the resident size of this process, without what the allocator only caches."""
    give_back()
    return process.own_resident_bytes()


def private_bytes() -> int:
    """Return the bytes that only this process holds: a forked one shares the rest."""
    return process.private_bytes()


def peak_bytes() -> int | None:
    """Return the kernel's high-water mark of this process; None where it has none."""
    return process.peak_bytes()


def growth_during(work: Callable[[], object]) -> int | None:
    """Return the peak growth of the process during a call; None where it is unknown.

    Resets the kernel's high-water mark.
    """
    before = resident_bytes()
    if not process.forget_peak():
        return None
    work()
    peak = process.peak_bytes()
    return None if peak is None else peak - before
