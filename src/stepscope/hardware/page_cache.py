"""What the system keeps of files in memory, and how to make it forget them.

`make_cold` drops the whole page cache where that is permitted (root, outside most containers), else
it advises the pages of the given files out of it. Neither is an order: pages that are dirty or
mapped stay, and a file system in memory has no other place for them. So what is left is looked up
afterwards. Caches below the system (of a disk, a hypervisor, a server) are seen by none of this.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_PAGES_ONLY = "1"  # of proc(5): not the directory entries and inodes besides


@dataclass(frozen=True)
class Cold:
    """How files were made cold, and which share of them was, looked up right afterwards.

    `how` is None where this system offers no way, `cold_share` where it does not tell; `reason`
    says why not, and why pages were only advised out.
    """

    how: Literal["dropped", "advised"] | None
    files: int
    bytes: int
    cold_share: float | None
    reason: str | None


def make_cold(paths: Sequence[Path]) -> Cold:
    """Take files out of the page cache, what was written of them first brought to the disk."""
    how: Literal["dropped", "advised"] | None = "dropped"
    reasons = [_drop_all()]
    if reasons[0] is not None:
        problem = _advise_out(paths)
        how = "advised" if problem is None else None
        reasons.append(problem)
    resident, unknown = _residency(paths)
    reasons.append(unknown)
    return Cold(
        how,
        files=len(paths),
        bytes=sum(path.stat().st_size for path in paths),
        cold_share=None if resident is None else 1 - resident,
        reason="; ".join(reason for reason in reasons if reason) or None,
    )


def _drop_all() -> str | None:
    """Drop the whole page cache; say why that cannot be done, where it cannot."""
    try:
        # Opened first: where it is not permitted, nobody waits for all disks of the machine.
        descriptor = os.open(DROP_CACHES, os.O_WRONLY)
        try:
            os.sync()
            os.write(descriptor, _PAGES_ONLY.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"the whole cache cannot be dropped: {DROP_CACHES}: {error.strerror}"
    return None


def _advise_out(paths: Sequence[Path]) -> str | None:
    """Advise the system to forget the files; say why that cannot be done, where it cannot."""
    if sys.platform != "linux":
        return "this system takes no advice about pages"
    try:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # a page that the disk has not got stays
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    except OSError as error:
        return f"{path} cannot be advised out: {error.strerror}"
    return None


def _residency(paths: Sequence[Path]) -> tuple[float | None, str | None]:
    """Return the share of pages that is in memory or, where it cannot be known, the reason."""
    if sys.platform != "linux":
        return None, "this system does not tell which pages are in memory"
    try:
        counted = [_pages(path) for path in paths]
    except OSError as error:
        return None, f"which pages are in memory cannot be looked up: {error.strerror}"
    pages = sum(of for _, of in counted)
    if not pages:
        return None, "there is no page that could be in memory"
    return sum(resident for resident, _ in counted) / pages, None


def _pages(path: Path) -> tuple[int, int]:
    """Count the pages of a file: those in memory, and all."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if not size_bytes:
            return 0, 0
        _check_may_know(descriptor)
        return _resident_pages(descriptor, size_bytes), -(-size_bytes // mmap.PAGESIZE)
    finally:
        os.close(descriptor)


def _check_may_know(descriptor: int) -> None:
    """Raise where the file is neither ours nor can we write it.

    Since Linux 5.2, mincore then calls every page resident.
    """
    owner = os.fstat(descriptor).st_uid
    if os.geteuid() not in (0, owner) and not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        raise PermissionError(errno.EPERM, "only who may write a file may know")


def _resident_pages(descriptor: int, size_bytes: int) -> int:
    """Ask for a mapping of the file, of which no page is touched.

    Not by the newer cachestat, which looks at the file that was opened: in an overlay, as in most
    containers, that one is empty and would be called cold while all of it is in memory.
    """
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    pages = (ctypes.c_ubyte * -(-size_bytes // mmap.PAGESIZE))()
    with mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)  # of a private copy: ctypes takes no constant
        failed = mincore(ctypes.byref(first), ctypes.c_size_t(size_bytes), pages)
        del first  # a mapping that somebody looks into cannot be closed
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return sum(page & 1 for page in pages)
