"""What a training's process tree holds beside the training process itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stepscope.hardware import host, process
from stepscope.hardware.process import TreeReading


@dataclass(frozen=True)
class Beside:
    """Weigh workers and the batches that they have made, from the moment this is made.

    Batches lie in /dev/shm, which is one for the whole machine: what others put there meanwhile
    counts too. Those that the training process has mapped are in its own size.
    """

    _shm_before_bytes: int | None = field(default_factory=host.shared_memory_used_bytes)

    def bytes_of(self, tree: TreeReading) -> int | None:
        """Return the workers' private bytes and batches in flight; None where sizes are unread."""
        if tree.workers_private_bytes is None:
            return None
        shm_now = host.shared_memory_used_bytes()
        in_flight = 0
        if shm_now is not None and self._shm_before_bytes is not None:
            in_flight = max(0, shm_now - self._shm_before_bytes - (tree.shared_rss_bytes or 0))
        return tree.workers_private_bytes + in_flight


# --- How much memory this process takes while it does something


def give_back() -> None:
    """Return to the system what the allocator keeps for later, where it can be told to."""
    process.give_back()


def resident_bytes() -> int:
    """Return what this process holds, without what the allocator merely keeps for later."""
    give_back()
    return process.own_resident_bytes()


def private_bytes() -> int:
    """Return what only this process holds: a forked one shares the rest with its parent."""
    return process.private_bytes()


def peak_bytes() -> int | None:
    """Return the kernel's high-water mark of this process; None where the system keeps none."""
    return process.peak_bytes()


def growth_during(work: Callable[[], object]) -> int | None:
    """Return by how much the process grew at most meanwhile; None where the system cannot tell.

    The kernel's high-water mark begins anew.
    """
    before = resident_bytes()
    if not process.forget_peak():
        return None
    work()
    peak = process.peak_bytes()
    return None if peak is None else peak - before
