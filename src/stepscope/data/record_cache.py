"""Record files in the user's cache: a faster way to the same bytes, and never needed.

Whoever can make the records asks for them here first. A file that is missing, cut off or altered is
not read, and a file that cannot be kept is not missed: no error leaves this module. Files are
replaced in one move, so several processes may read and write them at once.
"""

from __future__ import annotations

import shutil
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from stepscope.data.samples import IMAGE_BYTES, RECORD_BYTES, RecordFile
from stepscope.data.unpack_archive import write_whole
from stepscope.errors import DataError, StepscopeError

PIECE = 500  # records that are read or written at once: 1.5 MB, which a second-level cache holds

_LEAVE_FREE_BYTES = 2**30  # on the file system of the cache: others need it more
_ABANDONED_AFTER_S = 3600.0  # a file takes a second to write


def read_records(path: Path, wanted: RecordFile, images: np.ndarray, labels: np.ndarray) -> bool:
    """Fill uint8 `images` and `labels` with the first records of a file.

    All of the file is checked, by its crc32: 184 MB take 0.03 s, by their md5s 0.4 s. Return
    whether it is as pinned; if not, what the arrays hold means nothing.
    """
    pixels = images.reshape(len(images), IMAGE_BYTES)
    piece = np.empty((PIECE, RECORD_BYTES), dtype=np.uint8)
    checksum = 0
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size != wanted.size_bytes:
            return False
        with path.open("rb") as file:
            for first in range(0, wanted.records, PIECE):
                part = piece[: wanted.records - first]
                if file.readinto(part.data) != part.nbytes:
                    return False
                checksum = zlib.crc32(part.data, checksum)
                taken = part[: max(0, len(labels) - first)]
                labels[first : first + len(taken)] = taken[:, 0]
                pixels[first : first + len(taken)] = taken[:, 1:]
    except OSError:
        return False
    return checksum == wanted.crc32


def keep_records(path: Path, wanted: RecordFile, pieces: Iterable[np.ndarray]) -> bool:
    """Write a file of records; return whether it is there now.

    It is not where it cannot be written, where little room would be left, or where the records are
    not those that are pinned: they would never be read.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        if shutil.disk_usage(path.parent).free - wanted.size_bytes < _LEAVE_FREE_BYTES:
            return False
        write_whole(path, _checked(wanted, pieces))
    except (OSError, StepscopeError):
        return False
    return True


def _checked(wanted: RecordFile, pieces: Iterable[np.ndarray]) -> Iterator[bytes]:
    """Give the bytes of records, and raise after the last of them if they are not as pinned."""
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece.data, checksum)
        yield piece.tobytes()
    if checksum != wanted.crc32:
        raise DataError(f"wanted {wanted.name} with crc32 {wanted.crc32}, found {checksum}")


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes left half written that were killed, so that it cannot add up."""
    for part in folder.glob(".*.part"):
        if time.time() - part.stat().st_mtime > _ABANDONED_AFTER_S:
            part.unlink(missing_ok=True)
