"""The description of a data set: its classes, its sizes, and functions to open and check it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stepscope.data.data_source import DataSource
from stepscope.data.samples import (
    IMAGE_SHAPE,
    MemorySamples,
    RecordFiles,
    Split,
    Verified,
    VerifiedCache,
    samples_taken,
)

if TYPE_CHECKING:
    import torch

    from stepscope.data.image_transforms import Batches
    from stepscope.data.object_store.bucket import FromBucket

Report = Callable[[str], None]
Channels = tuple[float, float, float]


class Load(Protocol):
    """A function that reads records into memory."""

    def __call__(self, split: Split, data_dir: Path, samples: int | None = None) -> MemorySamples:
        """Read the first samples of a split, checked against their checksums."""


class OpenFiles(Protocol):
    """A function that returns records as files on the local disk."""

    def __call__(self, split: Split, data_dir: Path, samples: int | None = None) -> RecordFiles:
        """Return the first samples of a split; create their files if necessary."""


@dataclass(frozen=True)
class Records:
    """A data set of small images of one size, each a record of bytes.

    `mean` and `std` are those of the training pixels divided by 255.
    """

    load: Load
    open_files: OpenFiles
    mean: Channels
    std: Channels


@dataclass(frozen=True)
class Opened:
    """The batches of a split, by key, and the files or the bucket that they are read from."""

    batches: Batches
    samples: int
    files: tuple[Path, ...] = ()
    bucket: FromBucket | None = None


@dataclass(frozen=True)
class DataSet:
    """A data set, and functions to check, open, fetch and verify it.

    `samples` is the value of `--samples`; `samples_taken` turns it into the number of samples of a
    split. `tokens` is the vocabulary size of texts, None for images; the shape of a text is its
    maximum number of tokens.
    """

    name: str
    about: str
    class_names: tuple[str, ...]
    train_samples: int
    test_samples: int
    check: Callable[[Path], None]
    """Raise a DataError if the data seems to be missing; reads no data."""
    open: Callable[[Split, DataSource], Opened]
    """Open the batches of a split."""
    get: Callable[[Path, Report], None]
    """Download the data into the folder, unless it is there and valid."""
    verify: Callable[[Path], list[Verified]]
    """Check every stored file against its checksum."""
    shape: tuple[int, ...] = IMAGE_SHAPE
    tokens: int | None = None
    records: Records | None = None
    held_bytes: Callable[[Split, int | None], int] | None = None
    """Return the memory size of a split; None if it is the number of samples times their shape."""
    verify_cache: Callable[[], VerifiedCache | None] = lambda: None
    """Check the user's cache; None for a data set that is not cached."""

    @property
    def input_bytes(self) -> int:
        """The size of a sample in a batch, without its label: float32, or int64 for tokens."""
        return math.prod(self.shape) * (4 if self.tokens is None else 8)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def count(self, split: Split, samples: int | None = None) -> int:
        """Return the number of samples of `split` if `--samples` is `samples`."""
        return samples_taken(split, samples, self.train_samples, self.test_samples)

    def blank(self, samples: int) -> torch.Tensor:
        """Return constant inputs for a number of samples, to try a network."""
        import torch

        if self.tokens is None:
            return torch.zeros(samples, *self.shape)
        return torch.ones(samples, *self.shape, dtype=torch.int64)
