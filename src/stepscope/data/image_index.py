"""List the images of a folder in the ImageNet layout: `train/<class>/...` and `val/<class>/...`.

Samples alternate between classes, so that the first N samples cover all of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepscope.errors import DataError

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
_SHOWN = 5

Integers = npt.NDArray[np.int64]


class PackedBytes:
    """Byte strings in one block: reference counts would make every forked worker copy pages."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._block, ends = bytearray(), [0]
        for part in parts:
            self._block += part
            ends.append(len(self._block))
        self.ends = np.array(ends, dtype=np.int64)

    def __getitem__(self, index: int) -> bytes:
        return bytes(memoryview(self._block)[int(self.ends[index]) : int(self.ends[index + 1])])


@dataclass(frozen=True, eq=False)
class Listing:
    """The paths and the classes of the images of a split."""

    root: Path
    labels: Integers
    _names: PackedBytes

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        """Return the path of an image."""
        return self.root / os.fsdecode(self._names[index])

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of all images."""
        return tuple(self.path(index) for index in range(len(self)))

    def read(self, index: int) -> bytes:
        """Return the content of an image file, or raise an OSError."""
        return self.path(index).read_bytes()

    def first(self, samples: int) -> Listing:
        """Return a listing of the first `samples` images."""
        return replace(self, labels=self.labels[:samples])

    def size_bytes(self) -> int:
        """Return the total size of the files; unreadable files count as 0."""
        total = 0
        for path in self.paths:
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total


@dataclass(frozen=True, eq=False)
class FolderLayout:
    """The classes and splits of a folder. Without `val` the test split is empty."""

    class_names: tuple[str, ...]
    train: Listing
    test: Listing


def shown(path: Path | str) -> str:
    """Return a name for a message, quoted if it has unprintable characters."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def content_of(folder: Path) -> str:
    """Return `has 'a', 'b'` or `is not a folder`, for a message."""
    return f"has {_some(_names(folder))}" if folder.is_dir() else "is not a folder"


def list_images(data_dir: Path) -> FolderLayout:
    """Return the images of a folder; cached until the folder changes."""
    folders = [folder for split in ("train", "val") for folder in _classes(data_dir / split)]
    times = tuple((str(folder), folder.stat().st_mtime_ns) for folder in folders)
    return _list_images(data_dir, times)


@lru_cache(maxsize=2)
def _list_images(data_dir: Path, times: tuple[tuple[str, int], ...]) -> FolderLayout:
    train, val = data_dir / "train", data_dir / "val"
    wanted = f"wanted a folder for each class in {shown(train)}, with its images"
    if not train.is_dir():
        raise DataError(
            f"{wanted}; {shown(data_dir)} {content_of(data_dir)}. Pass the folder that has "
            "`train` and `val` in it as --data-dir."
        )
    class_names = tuple(folder.name for folder in _classes(train))
    if not class_names:
        raise DataError(f"{wanted}; found {_some(_names(train))} and no folder.")
    only_val = [name for folder in _classes(val) if (name := folder.name) not in class_names]
    if only_val:
        raise DataError(
            f"{shown(val)} has classes without training images in {shown(train)}: "
            f"{_some(only_val)}. Remove them, or add training images."
        )
    return FolderLayout(class_names, _list(train, class_names), _list(val, class_names))


def _list(split: Path, class_names: Sequence[str]) -> Listing:
    names: list[bytes] = []
    labels: list[int] = []
    turns: list[int] = []
    above = len(os.fsencode(split)) + 1
    for label, name in enumerate(class_names):
        if not (split / name).is_dir():  # a class may lack test images
            continue
        found = _images(split / name)
        if not found:
            inside = _some(_names(split / name))
            raise DataError(
                f"class {name!r} has no images: {shown(split / name)} has {inside}. Wanted files "
                f"that end in {', '.join(sorted(SUFFIXES))}. Add some, or remove the folder."
            )
        names += [os.fsencode(image)[above:] for image in found]
        labels += [label] * len(found)
        turns += range(len(found))
    order = np.lexsort((labels, turns)) if names else np.empty(0, np.intp)
    ordered = PackedBytes(names[place] for place in order.tolist())
    return Listing(split, np.array(labels, np.int64)[order], ordered)


def _classes(split: Path) -> list[Path]:
    return sorted(split / name for name in _names(split) if (split / name).is_dir())


def _images(folder: Path) -> list[str]:
    """Return the sorted image files below a folder, without hidden files."""
    return sorted(
        f"{where}/{name}"
        for where, _, files in os.walk(folder)
        for name in files
        if not name.startswith(".") and name[name.rfind(".") :].lower() in SUFFIXES
    )


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    try:
        return sorted(name for each in folder.iterdir() if not (name := each.name).startswith("."))
    except OSError as error:
        raise DataError(
            f"cannot read {shown(folder)}: {error.strerror}. Make it readable, or give another "
            "--data-dir."
        ) from error


def _some(names: Sequence[str]) -> str:
    if not names:
        return "nothing in it"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
