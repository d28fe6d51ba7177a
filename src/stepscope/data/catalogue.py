"""The data sets, by name.

A data set is one module beside this one and one line in `_MODULES`: it says what it is in a few
constants and how it is had in five functions (`DataModule`). `find` gives it as a `DataSet`.
Nothing is read or imported beyond that until one of the functions is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stepscope.data import cifar10, shapes
from stepscope.data.samples import (
    IMAGE_SHAPE,
    MemorySamples,
    RecordFiles,
    Split,
    Verified,
    samples_taken,
)
from stepscope.errors import RequestError, nearest

__all__ = ["DATA_SETS", "DataSet", "Split", "Verified", "find", "samples_taken"]

Report = Callable[[str], None]
Channels = tuple[float, float, float]


class Load(Protocol):
    """Read the first samples of a split into memory, checked against their checksums."""

    def __call__(
        self, split: Split, data_dir: Path, samples: int | None = None
    ) -> MemorySamples: ...


class OpenFiles(Protocol):
    """Give the first samples of a split as record files on the local disk, made if need be."""

    def __call__(self, split: Split, data_dir: Path, samples: int | None = None) -> RecordFiles: ...


@dataclass(frozen=True)
class DataSet:
    """What a data set is, and how it is had.

    `samples` is what `--samples` says: see `samples_taken`, which turns it into a number of
    samples of a split. Means and standard deviations are of the training pixels, over 255.
    """

    name: str
    about: str
    class_names: tuple[str, ...]
    train_samples: int
    test_samples: int
    mean: Channels
    std: Channels
    check: Callable[[Path], None]
    """Raise a DataError unless the data seems to be there; cheap, nothing is read."""
    load: Load
    open_files: OpenFiles
    get: Callable[[Path, Report], None]
    """Fetch the data into the folder, unless it is there and valid."""
    verify: Callable[[Path], list[Verified]]
    """Check every stored file against its checksum."""
    shape: tuple[int, int, int] = IMAGE_SHAPE

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    def count(self, split: Split, samples: int | None = None) -> int:
        """Return how many samples of `split` are taken when `--samples` is `samples`."""
        return samples_taken(split, samples, self.train_samples, self.test_samples)


class DataModule(Protocol):
    """What the module of a data set offers; `DataSet` says what each is."""

    NAME: str
    ABOUT: str
    CLASS_NAMES: tuple[str, ...]
    TRAIN_SAMPLES: int
    TEST_SAMPLES: int
    MEAN: Channels
    STD: Channels

    @property
    def check(self) -> Callable[[Path], None]: ...
    @property
    def load(self) -> Load: ...
    @property
    def open_files(self) -> OpenFiles: ...
    @property
    def get(self) -> Callable[[Path, Report], None]: ...
    @property
    def verify(self) -> Callable[[Path], list[Verified]]: ...


_MODULES: tuple[DataModule, ...] = (
    shapes,
    cifar10,
)


def _described(module: DataModule) -> DataSet:
    return DataSet(
        name=module.NAME,
        about=module.ABOUT,
        class_names=module.CLASS_NAMES,
        train_samples=module.TRAIN_SAMPLES,
        test_samples=module.TEST_SAMPLES,
        mean=module.MEAN,
        std=module.STD,
        check=module.check,
        load=module.load,
        open_files=module.open_files,
        get=module.get,
        verify=module.verify,
    )


DATA_SETS: dict[str, DataSet] = {module.NAME: _described(module) for module in _MODULES}


def find(name: str) -> DataSet:
    """Return the data set called `name`."""
    try:
        return DATA_SETS[name]
    except KeyError:
        raise RequestError(f"no data set {name!r}.{nearest(name, DATA_SETS)}") from None
