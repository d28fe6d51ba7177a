"""Unpack the expected files of an archive that is not trusted."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path

from stepscope.errors import DataError
from stepscope.files import atomic_folder

# Raised by the standard library for truncated or invalid archives.
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, OverflowError)


def extract(
    archive: Path, target: Path, *, prefix: str, names: Collection[str], limit_bytes: int
) -> None:
    """Unpack the regular files `prefix`/NAME of a tar.gz into the new folder `target`.

    Other entries are skipped. The folder appears when it is complete; an existing one is kept.
    """
    if target.is_dir():
        return
    try:
        packed = archive.open("rb")
    except OSError as error:
        raise DataError(f"cannot read {archive}: {error.strerror or error}") from error
    with packed, atomic_folder(target) as unpacked:
        try:
            with gzip.open(packed) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
                for entry in tar:
                    name = entry.name.removeprefix("./").removeprefix(f"{prefix}/")
                    content = tar.extractfile(entry) if entry.isreg() and name in names else None
                    if content is None:
                        continue
                    limit_bytes -= entry.size
                    if limit_bytes < 0:
                        raise DataError(
                            f"{archive} unpacks to more bytes than expected. Remove it and "
                            "fetch it again."
                        )
                    with content, (unpacked / name).open("wb") as out:
                        shutil.copyfileobj(content, out)
                while stream.read(1 << 20):  # to the end, where gzip verifies its checksum
                    pass
        except _BROKEN as error:
            raise DataError(
                f"{archive} is damaged or incomplete ({error}). Remove it and fetch it again."
            ) from error
