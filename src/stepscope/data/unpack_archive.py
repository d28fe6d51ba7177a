"""Unpack an archive that is not trusted.

Only regular files with expected names and a bounded total size are unpacked; the error names any
other entry. The folder appears under its name only when it is complete.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import IO, cast

from stepscope.errors import DataError
from stepscope.files import atomic_folder

_CHUNK_BYTES = 1 << 20

# Raised by the standard library for truncated or invalid archives.
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, OverflowError)


def extract(
    archive: Path, target: Path, *, prefix: str, names: Collection[str], limit_bytes: int
) -> None:
    """Unpack the files `prefix`/NAME of a tar.gz into the new folder `target`.

    Args:
        archive: The tar.gz.
        target: The folder to create. An existing folder is left unchanged.
        prefix: The only folder that the archive may contain; its name is dropped.
        names: The files to unpack; others in the same folder are skipped.
        limit_bytes: The maximum size of the unpacked archive.
    """
    if target.is_dir():
        return
    try:
        packed = archive.open("rb")
    except OSError as error:
        raise DataError(f"cannot read {archive}: {error.strerror or error}") from error
    with packed, atomic_folder(target) as unpacked:
        try:
            with gzip.open(packed) as stream:
                bounded = _Bounded(stream, archive, limit_bytes)
                # In this mode tarfile only ever calls `read`.
                with tarfile.open(fileobj=cast(IO[bytes], bounded), mode="r|") as tar:
                    for entry in tar:
                        name = _plain_name(archive, entry, prefix)
                        if name in names:
                            _copy(archive, tar, entry, unpacked / str(name))
                while bounded.read(_CHUNK_BYTES):  # to the end, where gzip verifies its checksum
                    pass
        except _BROKEN as error:
            raise DataError(
                f"{archive} is damaged or incomplete ({error}). Remove it and fetch it again."
            ) from error


class _Bounded:
    """A stream that raises after `limit_bytes`: an archive can unpack to any size."""

    def __init__(self, stream: gzip.GzipFile, archive: Path, limit_bytes: int) -> None:
        self._stream, self._archive = stream, archive
        self._limit_bytes = self._left_bytes = limit_bytes

    def read(self, size: int) -> bytes:
        found = self._stream.read(size)
        self._left_bytes -= len(found)
        if self._left_bytes < 0:
            raise DataError(
                f"{self._archive} unpacks to more than {self._limit_bytes} bytes; "
                "this is not the archive that was expected. Remove it and fetch it again."
            )
        return found


def _plain_name(archive: Path, entry: tarfile.TarInfo, prefix: str) -> str | None:
    """Return the entry's name inside `prefix`, None for a folder; raise for a bad entry."""
    parts = PurePosixPath(entry.name).parts
    if entry.name.startswith("/") or "\\" in entry.name or "\0" in entry.name:
        raise _refused(archive, entry, "not a plain relative path")
    if ".." in parts:
        raise _refused(archive, entry, "it leads out of the folder")
    if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
        raise _refused(archive, entry, "only regular files are unpacked, no links or devices")
    if parts[:1] != (prefix,):
        raise _refused(archive, entry, f"it does not lie in the folder {prefix!r}")
    if entry.isdir() or len(parts) != 2:
        return None
    return parts[1]


def _refused(archive: Path, entry: tarfile.TarInfo, why: str) -> DataError:
    return DataError(
        f"refused entry {entry.name!r} of {archive}: {why}. Remove it and fetch it again."
    )


def _copy(archive: Path, tar: tarfile.TarFile, entry: tarfile.TarInfo, to: Path) -> None:
    if to.exists():
        raise _refused(archive, entry, "it is there twice")
    content = tar.extractfile(entry)
    assert content is not None  # it is a regular file
    with content, to.open("wb") as out:
        shutil.copyfileobj(content, out, _CHUNK_BYTES)
