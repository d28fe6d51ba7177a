"""Compressed archives of files that a test makes up."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path


def tar_gz(path: Path, *entries: tuple[str, bytes] | tarfile.TarInfo) -> Path:
    """Write an archive of named contents and of special entries, such as links."""
    with tarfile.open(path, "w:gz") as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            tar.addfile(info, io.BytesIO(entry[1]))
    return path
