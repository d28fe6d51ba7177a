"""What a data set is: its classes, its counts, and how its batches are had."""

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
    """A function that gives records as files on the local disk."""

    def __call__(self, split: Split, data_dir: Path, samples: int | None = None) -> RecordFiles:
        """Give the first samples of a split, their files made if need be."""


@dataclass(frozen=True)
class Records:
    """A data set of small images of one size, each a record of some bytes.

    Means and standard deviations are of the training pixels, over 255.
    """

    load: Load
    open_files: OpenFiles
    mean: Channels
    std: Channels


@dataclass(frozen=True)
class Opened:
    """The batches of one split, made by key, and the files or the bucket they are read from."""

    batches: Batches
    samples: int
    files: tuple[Path, ...] = ()
    bucket: FromBucket | None = None


@dataclass(frozen=True)
class DataSet:
    """What a data set is, and how it is had.

    `samples` is what `--samples` says: see `samples_taken`, which turns it into a number of
    samples of a split. `tokens` is the size of a text's vocabulary, None for images; the shape of
    a text is the most tokens that it may have.
    """

    name: str
    about: str
    class_names: tuple[str, ...]
    train_samples: int
    test_samples: int
    check: Callable[[Path], None]
    """Raise a DataError unless the data seems to be there; cheap, nothing is read."""
    open: Callable[[Split, DataSource], Opened]
    """Make the batches of a split ready to be asked for."""
    get: Callable[[Path, Report], None]
    """Fetch the data into the folder, unless it is there and valid."""
    verify: Callable[[Path], list[Verified]]
    """Check every stored file against its checksum."""
    shape: tuple[int, ...] = IMAGE_SHAPE
    tokens: int | None = None
    records: Records | None = None
    held_bytes: Callable[[Split, int | None], int] | None = None
    """What a split takes in memory, where that is not its samples times their shape."""
    verify_cache: Callable[[], VerifiedCache | None] = lambda: None
    """Check what is in the user's cache; None where nothing of it would be."""

    @property
    def input_bytes(self) -> int:
        """What one sample takes in a batch, without its label: float32, or int64 for tokens."""
        return math.prod(self.shape) * (4 if self.tokens is None else 8)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def count(self, split: Split, samples: int | None = None) -> int:
        """Return how many samples of `split` are taken when `--samples` is `samples`."""
        return samples_taken(split, samples, self.train_samples, self.test_samples)

    def blank(self, samples: int) -> torch.Tensor:
        """Return inputs of so many samples that say nothing, to try a network with."""
        import torch

        if self.tokens is None:
            return torch.zeros(samples, *self.shape)
        return torch.ones(samples, *self.shape, dtype=torch.int64)
