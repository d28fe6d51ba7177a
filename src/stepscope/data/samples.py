"""Samples in memory, or as records in files.

`Samples.take` returns the images and labels of some indices:

    MemorySamples   arrays in memory
    RecordFiles     files of records, one `os.pread` a sample, so that disk and page cache affect
                    the training as usual

A record is CIFAR-10's: one label byte, then 3,072 pixel bytes, channel by channel, row by row.
`pack` and `unpack` convert between arrays and records; `inspect` checks a file of records.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from stepscope.data.dataset import IMAGE_SHAPE, Split, Status, Verified, samples_taken
from stepscope.errors import DataError, RequestError

IMAGE_BYTES = 3 * 32 * 32
RECORD_BYTES = 1 + IMAGE_BYTES


class Samples(Protocol):
    """Random access to samples by index."""

    def __len__(self) -> int: ...

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return uint8 images [n, 3, H, W] and int64 labels [n], in the order of `indices`.

        Both arrays are new and C-contiguous. A negative or too large index raises an IndexError.
        """
        ...


class MemorySamples:
    """Samples in memory."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Hold `images` (uint8, [n, 3, H, W]) and `labels` (integers, [n]); copy only if needed."""
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise DataError(
                f"images must be uint8 of shape [n, 3, height, width]; "
                f"found {images.dtype} of shape {list(images.shape)}"
            )
        if labels.shape != images.shape[:1]:
            raise DataError(f"{len(images)} images, but labels of shape {list(labels.shape)}")
        self.images = np.ascontiguousarray(images)
        self.labels = np.ascontiguousarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return copies of the samples at `indices`."""
        chosen = checked(indices, len(self))
        return np.take(self.images, chosen, axis=0), np.take(self.labels, chosen)


class RecordFiles:
    """Samples read one by one from files of records.

    Each process opens the files on its first read, also a copy that was pickled or forked: no
    descriptor is shared.
    """

    def __init__(
        self, paths: Sequence[Path], records_per_file: int, samples: int | None = None
    ) -> None:
        """Take the first `samples` records (all, if None) of `paths`, in their order."""
        self.paths = tuple(Path(path) for path in paths)
        self.records_per_file = records_per_file
        held = len(self.paths) * records_per_file
        self._length = held if samples is None else samples
        if not 0 <= self._length <= held:
            raise RequestError(f"wanted {samples} samples; the files hold {held}")
        self._pid = os.getpid()
        self._descriptors: dict[int, int] = {}

    def __len__(self) -> int:
        return self._length

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the records at `indices`, one `pread` each."""
        chosen = checked(indices, len(self))
        records = np.empty((len(chosen), RECORD_BYTES), dtype=np.uint8)
        for row, index in enumerate(chosen.tolist()):
            records[row] = np.frombuffer(self._read(index), dtype=np.uint8)
        return unpack(records)

    def _read(self, index: int) -> bytes:
        file, record = divmod(index, self.records_per_file)
        descriptor = self._descriptor(file)
        offset = record * RECORD_BYTES
        try:
            found = os.pread(descriptor, RECORD_BYTES, offset)
            while (
                found and len(found) < RECORD_BYTES
            ):  # a signal or the end of the file may cut a read short
                more = os.pread(descriptor, RECORD_BYTES - len(found), offset + len(found))
                if not more:
                    break
                found += more
        except OSError as error:
            raise DataError(
                f"cannot read record {record} of {self.paths[file]}: {error.strerror}. "
                "Check the disk, or fetch the data again with `stepscope data get`."
            ) from error
        if len(found) < RECORD_BYTES:
            raise DataError(
                f"{self.paths[file]} ends inside record {record}: wanted {RECORD_BYTES} bytes, "
                f"found {len(found)}. Check it with `stepscope data verify`."
            )
        return found

    def _descriptor(self, file: int) -> int:
        if self._pid != os.getpid():  # forked: the descriptors belong to the parent
            self._pid, self._descriptors = os.getpid(), {}
        known = self._descriptors.get(file)
        if known is not None:
            return known
        try:
            opened = os.open(self.paths[file], os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(
                f"cannot open {self.paths[file]}: {error.strerror}. "
                "Check it with `stepscope data verify`."
            ) from error
        kept = self._descriptors.setdefault(file, opened)
        if kept != opened:  # another thread was first
            os.close(opened)
        return kept

    def close(self) -> None:
        """Close the files of this process; the next `take` opens them again."""
        if self._pid == os.getpid():
            for descriptor in self._descriptors.values():
                os.close(descriptor)
        self._descriptors = {}

    def __del__(self) -> None:
        if hasattr(self, "_descriptors"):
            self.close()

    def __getstate__(self) -> object:
        return {**self.__dict__, "_descriptors": {}, "_pid": -1}


def checked(indices: np.ndarray, length: int) -> np.ndarray:
    """Return indices as integers; raise an IndexError for one out of range."""
    chosen = np.asarray(indices, dtype=np.int64)
    outside = (chosen < 0) | (chosen >= length)
    if outside.any():
        raise IndexError(f"sample {chosen[outside][0]} of {length}")
    return chosen


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
    """The expected name, number of records and md5 of a file of records.

    Files that are read often also have a crc32, which is faster to check.
    """

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


def inspect(content: bytes | np.ndarray, wanted: RecordFile, classes: int) -> Verified:
    """Check that `content` is the expected file; report the simplest fault first."""
    records = np.frombuffer(content, dtype=np.uint8)
    if records.nbytes != wanted.size_bytes:
        status: Status = "truncated" if records.nbytes < wanted.size_bytes else "too long"
        sizes = f"wanted {wanted.size_bytes} bytes, found {records.nbytes}"
        return Verified(wanted.name, status, sizes)
    labels = records[::RECORD_BYTES]
    strange = np.flatnonzero(labels >= classes)
    if len(strange):
        where = f"record {strange[0]} has label {labels[strange[0]]}, wanted 0 to {classes - 1}"
        return Verified(wanted.name, "bad label", where)
    found = hashlib.md5(records.data, usedforsecurity=False).hexdigest()
    if found != wanted.md5:
        return Verified(wanted.name, "altered", f"wanted md5 {wanted.md5}, found {found}")
    return Verified(wanted.name, "ok", f"md5 {found}")
