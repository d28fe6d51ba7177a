"""Memory of the C library's allocator in this process: in use, and cached.

A freed block returns to the system only if it was mapped separately or lies at the end of the heap.
So the resident size does not show when a program frees memory; these figures do.
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
    """Bytes in use by the program, and freed bytes that the allocator keeps."""

    in_use_bytes: int
    kept_bytes: int


class _MallInfo2(ctypes.Structure):
    """The result of glibc's `mallinfo2`, with the C library's names."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def read_allocator() -> AllocatorReading | None:
    """Query the allocator, in some 10 µs; None if it is not glibc 2.33 or later."""
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
