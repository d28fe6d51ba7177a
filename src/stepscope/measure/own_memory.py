"""How much memory this process takes while it does something."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.hardware import own_memory


def give_back() -> None:
    """Return to the system what the allocator keeps for later, where it can be told to."""
    own_memory.give_back()


def resident_bytes() -> int:
    """Return what this process holds, without what the allocator merely keeps for later."""
    give_back()
    return own_memory.resident_bytes()


def private_bytes() -> int:
    """Return what only this process holds: a forked one shares the rest with its parent."""
    return own_memory.private_bytes()


def peak_bytes() -> int | None:
    """Return the kernel's high-water mark of this process; None where the system keeps none."""
    return own_memory.peak_bytes()


def growth_during(work: Callable[[], object]) -> int | None:
    """Return by how much the process grew at most meanwhile; None where the system cannot tell.

    The kernel's high-water mark begins anew.
    """
    before = resident_bytes()
    if not own_memory.forget_peak():
        return None
    work()
    peak = own_memory.peak_bytes()
    return None if peak is None else peak - before
