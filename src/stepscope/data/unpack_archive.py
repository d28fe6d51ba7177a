"""Files that are there whole or not at all: unpack an archive, write a file.

An archive comes from elsewhere and is believed in nothing: only regular files with expected names
and bounded sizes leave it, and an entry that tries anything else is named in the error. What is
written appears under its name only when complete, so an interrupted run leaves nothing that looks
like data.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from stepscope.errors import DISK_FULL_ERRNOS, DataError, RequestError, StepscopeError, disk_full

_CHUNK_BYTES = 1 << 20

# What the standard library raises for archives that are cut off or are none at all.
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, OverflowError)


def cannot_write(error: OSError, what: str) -> StepscopeError:
    """Turn a failed write into the error a person should read."""
    if error.errno in DISK_FULL_ERRNOS:
        return disk_full(error, what)
    return RequestError(
        f"cannot write {what}: {error.strerror or error}. "
        "Choose a folder that can be written, with --data-dir."
    )


def write_whole(path: Path, content: Iterable[bytes]) -> None:
    """Write `content`, piece by piece, to `path`, which appears only when it is complete."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=".part", dir=path.parent
        )
    except OSError as error:
        raise cannot_write(error, str(path)) from error
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            for piece in content:
                stream.write(piece)
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    except OSError as error:
        raise cannot_write(error, str(path)) from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def folder_in_the_making(target: Path) -> Iterator[Path]:
    """Yield an empty sibling of `target` that takes its name when the block ends well.

    If `target` came to be in the meantime, made by another process, that one stays. Errors of
    writing inside the block become the errors a person should read.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        making = Path(
            tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        )
    except OSError as error:
        raise cannot_write(error, str(target)) from error
    try:
        yield making
        making.chmod(0o777 & ~_umask())
        try:
            making.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    except OSError as error:
        raise cannot_write(error, str(target)) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)


def extract(
    archive: Path, target: Path, *, prefix: str, names: Collection[str], limit_bytes: int
) -> None:
    """Unpack the files `prefix`/NAME of a tar.gz into the folder `target`, which appears whole.

    Args:
        archive: The tar.gz.
        target: The folder to make. If it exists already, it is left as it is.
        prefix: The one folder that the archive may hold; its name is dropped.
        names: The files to unpack; others in the same folder are passed over.
        limit_bytes: The most that the archive may hold, unpacked.
    """
    if target.is_dir():
        return
    try:
        packed = archive.open("rb")
    except OSError as error:
        raise DataError(f"cannot read {archive}: {error.strerror or error}") from error
    with packed, folder_in_the_making(target) as making:
        try:
            with gzip.open(packed) as stream:
                bounded = _Bounded(stream, archive, limit_bytes)
                # In this mode tarfile only ever calls `read`.
                with tarfile.open(fileobj=cast(IO[bytes], bounded), mode="r|") as tar:
                    for entry in tar:
                        name = _plain_name(archive, entry, prefix)
                        if name in names:
                            _copy(archive, tar, entry, making / str(name))
                while bounded.read(_CHUNK_BYTES):  # to the end, where gzip keeps its checksum
                    pass
        except _BROKEN as error:
            raise DataError(
                f"{archive} is damaged or incomplete ({error}). Remove it and fetch it again."
            ) from error


class _Bounded:
    """A stream that refuses to give more than it may: an archive can unpack to any size."""

    def __init__(self, stream: gzip.GzipFile, archive: Path, limit_bytes: int) -> None:
        self._stream, self._archive = stream, archive
        self._limit_bytes = self._room = limit_bytes

    def read(self, size: int) -> bytes:
        found = self._stream.read(size)
        self._room -= len(found)
        if self._room < 0:
            raise DataError(
                f"{self._archive} unpacks to more than {self._limit_bytes} bytes; "
                "this is not the archive that was expected. Remove it and fetch it again."
            )
        return found


def _plain_name(archive: Path, entry: tarfile.TarInfo, prefix: str) -> str | None:
    """Return the entry's name inside `prefix`, None for a folder, or refuse the entry."""
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


def _umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
