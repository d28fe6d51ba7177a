"""What the C library's allocator holds of this process: handed out, and kept for later.

A block that is freed goes back to the system only where it was mapped by itself or lies at the end
of the heap. So the resident size does not tell when a program let go of something; this does.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AllocatorReading:
    """Bytes handed out to the program, and bytes that it freed and the allocator keeps."""

    in_use_bytes: int
    kept_bytes: int


class _MallInfo2(ctypes.Structure):
    """The answer of glibc's `mallinfo2`; the names are the C library's."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def read_allocator() -> AllocatorReading | None:
    """Ask the allocator, in some 10 µs; None where it is not glibc's, 2.33 or later."""
    ask = _mallinfo2()
    if ask is None:
        return None
    found = ask()
    return AllocatorReading(found.uordblks + found.hblkhd, found.fordblks)


@functools.cache
def _mallinfo2() -> Callable[[], Any] | None:
    if sys.platform != "linux":
        return None
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is not None:
        ask.restype = _MallInfo2
    return ask
