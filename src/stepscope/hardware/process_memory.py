"""The memory of this process: resident, private, peak, and that of the C library's allocator.

The allocator keeps most freed blocks, so that the resident size does not show when a program frees
memory; `read_allocator` does.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from stepscope.hardware.procfs import sizes_in

_FORGET_PEAK = "5"  # see proc(5): reset the high-water mark


def own_resident_bytes() -> int:
    """Return the resident size of this process."""
    return int(psutil.Process().memory_info().rss)


def trimmed_resident_bytes() -> int:
    """Return the resident size of this process, without what the allocator only caches."""
    give_back()
    return own_resident_bytes()


def private_bytes() -> int:
    """Return the bytes that only this process holds: a forked one shares the rest."""
    return int(psutil.Process().memory_full_info().uss)


def peak_bytes() -> int | None:
    """Return the high-water mark of this process; None where the system keeps none."""
    return sizes_in("/proc/self/status").get("VmHWM")


def forget_peak() -> bool:
    """Reset the high-water mark; return whether that was possible."""
    try:
        Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)
    except OSError:
        return False
    return True


def growth_during(work: Callable[[], object]) -> int | None:
    """Return the peak growth of this process during a call; None where it is unknown.

    Resets the high-water mark.
    """
    before = trimmed_resident_bytes()
    if not forget_peak():
        return None
    work()
    peak = peak_bytes()
    return None if peak is None else peak - before


# --- The allocator of the C library


class _MallInfo2(ctypes.Structure):
    """The result of glibc's `mallinfo2`, with the C library's names."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def read_allocator() -> tuple[int, int] | tuple[None, None]:
    """Return the bytes in use and the freed bytes that the allocator keeps, in some 10 µs.

    None if it is not glibc 2.33 or later.
    """
    ask = _c_function("mallinfo2")
    if ask is None:
        return None, None
    ask.restype = _MallInfo2
    found = ask()
    return found.uordblks + found.hblkhd, found.fordblks


def give_back() -> None:
    """Let the allocator return cached memory to the system, where it can."""
    trim = _c_function("malloc_trim")  # glibc's; musl has none
    if trim is not None:
        trim(0)


@functools.cache
def _c_function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
