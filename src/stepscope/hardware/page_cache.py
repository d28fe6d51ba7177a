"""The page cache: evict files, and count the pages that stay in memory.

Eviction is not guaranteed: dirty or mapped pages stay, and so do files of an in-memory file system.
So the remaining pages are counted. Caches of a disk, a hypervisor or a server are not visible.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from stepscope.records.types import EvictedFiles

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_PAGES_ONLY = "1"  # see proc(5): without directory entries and inodes


def make_cold(paths: Sequence[Path]) -> EvictedFiles:
    """Evict files from the page cache, after writing dirty pages to the disk."""
    how: Literal["dropped", "advised"] | None = "dropped"
    reasons = [_drop_all()]
    if reasons[0] is not None:
        problem = advise_out(paths, sync=True)
        how = "advised" if problem is None else None
        reasons.append(problem)
    resident, unknown = _residency(paths)
    reasons.append(unknown)
    return {
        "how": how,
        "files": len(paths),
        "bytes": sum(path.stat().st_size for path in paths),
        "cold_share": None if resident is None else 1 - resident,
        "reason": "; ".join(reason for reason in reasons if reason) or None,
    }


def _drop_all() -> str | None:
    """Drop the whole page cache; return the reason if that is not possible."""
    try:
        # Open first: without permission there is no need to sync all disks.
        descriptor = os.open(DROP_CACHES, os.O_WRONLY)
        try:
            os.sync()
            os.write(descriptor, _PAGES_ONLY.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"the whole cache cannot be dropped: {DROP_CACHES}: {error.strerror}"
    return None


def advise_out(paths: Sequence[Path], *, sync: bool = False) -> str | None:
    """Advise the system to evict files; return the reason if it cannot."""
    if sys.platform != "linux":
        return "only Linux can evict files"
    try:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                if sync:
                    os.fsync(file)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        return f"{path} cannot be evicted: {error.strerror}"
    return None


def _residency(paths: Sequence[Path]) -> tuple[float | None, str | None]:
    """Return the share of pages in memory or, if unknown, the reason."""
    if sys.platform != "linux":
        return None, "only Linux reports which pages are cached"
    try:
        counted = [_pages(path) for path in paths]
    except OSError as error:
        return None, f"cached pages cannot be counted: {error.strerror}"
    pages = sum(of for _, of in counted)
    if not pages:
        return None, "all files are empty"
    return sum(resident for resident, _ in counted) / pages, None


def _pages(path: Path) -> tuple[int, int]:
    """Return the number of a file's pages in memory, and of all its pages."""
    with path.open("rb", buffering=0) as file:
        descriptor, status = file.fileno(), os.fstat(file.fileno())
        if not status.st_size:
            return 0, 0
        # Since Linux 5.2, mincore reports every page of another user's file as resident.
        writable = os.access(f"/proc/self/fd/{descriptor}", os.W_OK)
        if os.geteuid() not in (0, status.st_uid) and not writable:
            raise PermissionError(errno.EPERM, "only for files that you can write")
        return _resident_pages(descriptor, status.st_size), -(-status.st_size // mmap.PAGESIZE)


def _resident_pages(descriptor: int, size_bytes: int) -> int:
    """Count resident pages through a mapping of the file, without touching a page.

    The newer cachestat is not used: it examines the opened file, which in an overlay, as in most
    containers, is empty and would appear cold while all of it is in memory.
    """
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    pages = (ctypes.c_ubyte * -(-size_bytes // mmap.PAGESIZE))()
    with mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)  # a private copy: ctypes needs a writable buffer
        failed = mincore(ctypes.byref(first), ctypes.c_size_t(size_bytes), pages)
        del first  # a mapping with exported pointers cannot be closed
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return sum(page & 1 for page in pages)
