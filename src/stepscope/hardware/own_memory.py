"""The memory of this very process: how much it holds, held at most, and how to give some back."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import psutil

from stepscope.hardware.pseudo_files import status_bytes

_FORGET_PEAK = "5"  # what proc(5) gives the number to: set the high-water mark to the present


def resident_bytes() -> int:
    """Return what of this process is in memory now."""
    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int | None:
    """Return the high-water mark; None where the system keeps none."""
    return status_bytes("self").get("VmHWM")


def forget_peak() -> bool:
    """Begin a new high-water mark; False where that cannot be done."""
    try:
        Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)
    except OSError:
        return False
    return True


def give_back() -> bool:
    """Have the C library return what it keeps for later; False where it has no such call."""
    if sys.platform != "linux":
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl has none
    if trim is None:
        return False
    trim(0)
    return True


def private_bytes() -> int:
    """Return what only this process holds, and would be free without it."""
    return int(psutil.Process().memory_full_info().uss)
