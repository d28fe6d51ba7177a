"""Samples in memory, or as records in files.

A record is CIFAR-10's: one label byte, then 3,072 pixel bytes, channel by channel, row by row.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from stepscope.data.dataset import IMAGE_SHAPE, Split, Status, samples_taken
from stepscope.errors import DataError
from stepscope.records.types import VerifiedFile

IMAGE_BYTES = 3 * 32 * 32
RECORD_BYTES = 1 + IMAGE_BYTES


class Samples(Protocol):
    """Random access to samples by index."""

    def __len__(self) -> int: ...

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return uint8 images [n, 3, H, W] and int64 labels [n], as new contiguous arrays."""
        ...


class MemorySamples:
    """Samples in memory."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Hold `images` (uint8, [n, 3, H, W]) and `labels` (integers, [n]); copy only if needed."""
        self.images = np.ascontiguousarray(images)
        self.labels = np.ascontiguousarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return copies of the samples at `indices`."""
        return np.take(self.images, indices, axis=0), np.take(self.labels, indices)


class RecordFiles:
    """Samples read one by one from files of records, so that disk and page cache take part."""

    def __init__(self, paths: Sequence[Path], records_per_file: int, samples: int) -> None:
        """Take the first `samples` records of `paths`, in their order."""
        self.paths = tuple(paths)
        self.records_per_file = records_per_file
        self._length = samples
        self._descriptors: dict[int, int] = {}  # a forked worker may use them: pread has no offset

    def __len__(self) -> int:
        return self._length

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the records at `indices`, one `pread` each."""
        records = np.empty((len(indices), RECORD_BYTES), dtype=np.uint8)
        for row, index in enumerate(indices.tolist()):
            records[row] = np.frombuffer(self._read(index), dtype=np.uint8)
        return unpack(records)

    def _read(self, index: int) -> bytes:
        file, record = divmod(index, self.records_per_file)
        try:
            if file not in self._descriptors:
                self._descriptors[file] = os.open(self.paths[file], os.O_RDONLY | os.O_CLOEXEC)
            found = os.pread(self._descriptors[file], RECORD_BYTES, record * RECORD_BYTES)
        except OSError as error:
            raise DataError(
                f"cannot read record {record} of {self.paths[file]}: {error.strerror}. "
                "Check it with `stepscope data verify`."
            ) from error
        if len(found) < RECORD_BYTES:
            raise DataError(
                f"{self.paths[file]} ends inside record {record}: wanted {RECORD_BYTES} bytes, "
                f"found {len(found)}. Check it with `stepscope data verify`."
            )
        return found

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def __getstate__(self) -> object:
        return {**self.__dict__, "_descriptors": {}}


def pack(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return records, uint8 [n, 3073], of images [n, 3, 32, 32] and labels below 256."""
    records = np.empty((len(images), RECORD_BYTES), dtype=np.uint8)
    records[:, 0] = labels
    records[:, 1:] = images.reshape(len(images), IMAGE_BYTES)
    return records


def unpack(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of records, as new arrays."""
    images = np.ascontiguousarray(records[:, 1:]).reshape(len(records), *IMAGE_SHAPE)
    return images, records[:, 0].astype(np.int64)


@dataclass(frozen=True)
class RecordFile:
    """A published file of records; those of the cache have a crc32, which is faster to check."""

    name: str
    records: int
    md5: str
    crc32: int | None = None

    @property
    def size_bytes(self) -> int:
        """The size of the whole file."""
        return self.records * RECORD_BYTES


@dataclass(frozen=True)
class PublishedFiles:
    """The files of a data set of records, all of one size, whose checksums are published."""

    train: tuple[RecordFile, ...]
    test: tuple[RecordFile, ...]

    def __iter__(self) -> Iterator[RecordFile]:
        return iter(self.train + self.test)

    def count(self, split: Split) -> int:
        """Return the number of samples of a split."""
        return sum(file.records for file in (self.train if split == "train" else self.test))

    def needed(self, split: Split, samples: int | None) -> tuple[tuple[RecordFile, ...], int]:
        """Return the files that contain `samples`, and the number of samples to take."""
        count = samples_taken(split, samples, self.count("train"), self.count("test"))
        files = self.train if split == "train" else self.test
        return files[: -(-count // files[0].records)], count


def examine(
    path: Path, wanted: RecordFile, classes: int, read: Callable[[Path], bytes] = Path.read_bytes
) -> tuple[VerifiedFile, bytes]:
    """Read and check a file of records; return the result and the content."""
    try:
        content = read(path)
    except FileNotFoundError:
        return {"file": path.name, "status": "missing", "detail": "no such file"}, b""
    except (OSError, DataError) as error:
        detail = str(error.strerror if isinstance(error, OSError) else error)
        return {"file": path.name, "status": "unreadable", "detail": detail}, b""
    return {**inspect(content, wanted, classes), "file": path.name}, content


def inspect(content: bytes | np.ndarray, wanted: RecordFile, classes: int) -> VerifiedFile:
    """Check that `content` is the expected file; report the simplest fault first."""

    def found(status: Status, detail: str) -> VerifiedFile:
        return {"file": wanted.name, "status": status, "detail": detail}

    records = np.frombuffer(content, dtype=np.uint8)
    if records.nbytes != wanted.size_bytes:
        sizes = f"wanted {wanted.size_bytes} bytes, found {records.nbytes}"
        return found("truncated" if records.nbytes < wanted.size_bytes else "too long", sizes)
    labels = records[::RECORD_BYTES]
    strange = np.flatnonzero(labels >= classes)
    if len(strange):
        label = f"record {strange[0]} has label {labels[strange[0]]}, wanted 0 to {classes - 1}"
        return found("bad label", label)
    md5 = hashlib.md5(records.data, usedforsecurity=False).hexdigest()
    if md5 != wanted.md5:
        return found("altered", f"wanted md5 {wanted.md5}, found {md5}")
    return found("ok", f"md5 {md5}")
