"""The description of a data set: its classes and sizes, and functions to open and check it.

Needs neither torch nor numpy, so that the parent of a run can describe its data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stepscope.errors import RequestError
from stepscope.records.types import VerifiedFile, VerifiedFolder

if TYPE_CHECKING:
    import torch

    from stepscope.data.loaders.dataloader import Batches
    from stepscope.data.object_store.bucket import StoredSplit
    from stepscope.data.object_store.store_client import RequestStats
    from stepscope.data.object_store.store_process import DownloadProgress
    from stepscope.data.samples import MemorySamples, RecordFiles

Split = Literal["train", "test"]
Pipeline = Literal["batch", "sample"]
Access = Literal["download", "stream"]
OnBadSample = Literal["skip", "fail"]
Status = Literal["ok", "missing", "unreadable", "truncated", "too long", "bad label", "altered"]
Report = Callable[[str], None]
Channels = tuple[float, float, float]

IMAGE_SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class DataSource:
    """Where a data set is, how many samples to take, and how to process them.

    `tokens` is the vocabulary size of the network. `on_retry` receives the retried requests of an
    object store in any process, so it must be picklable; `report` may raise to end a download.
    """

    data_dir: Path = Path("data")
    source: str = "memory"
    samples: int | None = None
    validation: int = 0
    shape: tuple[int, ...] | None = None
    pipeline: Pipeline = "batch"
    augment_seed: int | None = None
    on_bad_sample: OnBadSample = "skip"
    access: Access = "download"
    endpoint_url: str | None = None
    shuffle: str = "full"
    workers: int = 0
    sequence_length: int = 128
    tokens: int = 30_522
    vocabulary_dir: Path | None = None
    on_retry: Callable[[Split, RequestStats], None] | None = None
    report: Callable[[Split, DownloadProgress], None] | None = None


@dataclass(frozen=True)
class Records:
    """A data set of small images; `mean` and `std` are of the training pixels divided by 255."""

    load: Callable[[Split, Path, int | None], MemorySamples]
    """Read the first samples of a split into memory, checked against their checksums."""
    open_files: Callable[[Split, Path, int | None], RecordFiles]
    """Return the first samples of a split as files; create them if necessary."""
    mean: Channels
    std: Channels


@dataclass(frozen=True)
class Opened:
    """The batches of a split, by key, and the files or the bucket that they are read from."""

    batches: Batches
    samples: int
    files: tuple[Path, ...] = ()
    bucket: StoredSplit | None = None


def _cannot_fetch(data_dir: Path, report: Report) -> None:
    raise RequestError("cannot fetch your own data. Give its folder as --data-dir.")


@dataclass(frozen=True)
class DataSet:
    """A data set, and functions to check, open, fetch and verify it.

    `tokens` is the vocabulary size of texts, whose shape is their maximum number of tokens.
    """

    name: str
    class_names: tuple[str, ...]
    train_samples: int
    test_samples: int
    check: Callable[[Path], None]
    """Raise a DataError if the data seems to be missing; reads no data."""
    verify: Callable[[Path], list[VerifiedFile]]
    """Check every stored file against its checksum."""
    get: Callable[[Path, Report], None] = _cannot_fetch
    """Download the data into the folder, unless it is there and valid."""
    shape: tuple[int, ...] = IMAGE_SHAPE
    tokens: int | None = None
    records: Records | None = None
    """The records of a data set of small images; others have `open_batches`."""
    open_batches: Callable[[Split, DataSource], Opened] | None = None
    held_bytes: Callable[[Split, int | None], int] | None = None
    """Return the memory size of a split; None if it is the number of samples times their shape."""
    verify_cache: Callable[[], VerifiedFolder | None] = lambda: None
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


def samples_taken(split: Split, samples: int | None, train: int, test: int) -> int:
    """Return the number of samples for `--samples` N: N training samples, N // 5 test samples.

    None takes all of `train` or `test`. At least one test sample is taken, and at most all of them.
    """
    if samples is not None and not 1 <= samples <= train:
        raise RequestError(
            f"wanted {samples:,} samples; the data set has {train:,}. "
            f"Give --samples between 1 and {train}, or leave it out for all."
        )
    if split == "train":
        return train if samples is None else samples
    return test if samples is None else min(test, max(1, samples // 5))
