"""A folder as bytes, and back: how a trial's record comes from the node that made it."""

from __future__ import annotations

import io
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from stepscope.records import schema

MOST_BYTES = 256 * 1024**2
_LEFT_BEHIND = (schema.CHECKPOINT,)


@dataclass(frozen=True)
class Parcel:
    """The files of a folder, packed, and the names of those that were left behind."""

    data: bytes
    left_behind: tuple[str, ...] = ()


def pack(folder: Path, most_bytes: int = MOST_BYTES) -> Parcel:
    """Pack a folder's files, without checkpoints, the smallest first, up to so many bytes in all.

    The record of what happened is small and always fits; what is huge is left behind, by name.
    """
    files = sorted(
        (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()),
        key=lambda file: (file.stat().st_size, file),
    )
    packed, left_behind, total_bytes = io.BytesIO(), [], 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in files:
            name, size = str(file.relative_to(folder)), file.stat().st_size
            if file.name in _LEFT_BEHIND or total_bytes + size > most_bytes:
                left_behind.append(name)
                continue
            archive.write(file, name)
            total_bytes += size
    return Parcel(packed.getvalue(), tuple(sorted(left_behind)))


def unpack(parcel: Parcel, folder: Path) -> None:
    """Make the folder again, in one move: killed on the way, it leaves none that looks whole."""
    building = folder.with_name(f".{folder.name}.part")
    for leftover in (building, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    building.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(parcel.data)) as archive:
        archive.extractall(building)
    building.rename(folder)
