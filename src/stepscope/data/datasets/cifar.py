"""CIFAR-10, in any of its official layouts, of which the first complete one is read.

    cifar-10-batches-bin/       the official binary files, which may also be in the data folder
    cifar-10-batches-py/        the official python files: pickles, which are not run
    cifar-10-binary.tar.gz      the official archives, unpacked on first use
    cifar-10-python.tar.gz

All are converted to the official binary records, whose md5s are checked each time data is read.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepscope.data.dataset import DataSet, DataSource, Records, Split
from stepscope.data.samples import (
    IMAGE_BYTES,
    RECORD_BYTES,
    MemorySamples,
    PublishedFiles,
    RecordFile,
    RecordFiles,
    examine,
    pack,
    unpack,
)
from stepscope.data.unpack_archive import extract
from stepscope.errors import DataError
from stepscope.files import write_atomically
from stepscope.records.types import VerifiedFile

CLASS_NAMES: tuple[str, ...] = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
# Of the training pixels divided by 255.
MEAN = (0.49139968, 0.48215841, 0.44653091)
STD = (0.24703223, 0.24348513, 0.26158784)

BIN_FOLDER = "cifar-10-batches-bin"
PY_FOLDER = "cifar-10-batches-py"
BIN_ARCHIVE = "cifar-10-binary.tar.gz"
PY_ARCHIVE = "cifar-10-python.tar.gz"
_LAYOUTS = ((BIN_ARCHIVE, BIN_FOLDER, False), (PY_ARCHIVE, PY_FOLDER, True))  # whether pickled

# The md5s of the files in the official cifar-10-binary.tar.gz
# (https://www.cs.toronto.edu/~kriz/cifar.html).
FILES = PublishedFiles(
    train=tuple(
        RecordFile(f"data_batch_{number}.bin", 10_000, md5)
        for number, md5 in enumerate(
            (
                "5dd7e06a14cb22eb9f671a540d1b7c25",
                "5ea93a67294ea407fff1d09f752e9692",
                "942cd6a4bcdd0dd3c604fbe906cb4421",
                "ae636b3ba5c66a11e91e8cb52e771fcb",
                "53f37980c15c3d472c316c40844f3f0d",
            ),
            start=1,
        )
    ),
    test=(RecordFile("test_batch.bin", 10_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),),
)

# Strings in a pickled batch, and the instructions that hold a whole number.
_KEYS = frozenset({b"data", b"labels", b"batch_label", b"filenames"})
_INTEGERS = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"})


@dataclass(frozen=True)
class _Home:
    """A folder with the data set, and the format of its files."""

    folder: Path
    pickled: bool

    def path(self, file: RecordFile) -> Path:
        return self.folder / (file.name.removesuffix(".bin") if self.pickled else file.name)

    def missing(self) -> list[str]:
        return [path.name for path in map(self.path, FILES) if not _is_file(path)]

    def examine(self, file: RecordFile) -> tuple[VerifiedFile, bytes]:
        read = _read_pickled if self.pickled else Path.read_bytes
        return examine(self.path(file), file, len(CLASS_NAMES), read)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no permission to read the folder
        return False


def _read_pickled(path: Path) -> bytes:
    """Return the binary records of one file of the python layout."""
    pixels, labels = read_batch(path.read_bytes(), path.name)
    if len(pixels) != len(labels) * IMAGE_BYTES:
        raise DataError(f"{path.name}: wanted uint8 pixels [n, {IMAGE_BYTES}] and n labels")
    images = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, IMAGE_BYTES)
    # An invalid label stays invalid: it becomes 255.
    classes = [label if 0 <= label < 255 else 255 for label in labels]
    return pack(images, np.array(classes, dtype=np.uint8)).tobytes()


def read_batch(content: bytes, where: str) -> tuple[bytes, list[int]]:
    """Return the pixels and the labels of a pickled batch, none of whose instructions is run.

    They are only listed: the pixels are the longest string after `data`, the labels the whole
    numbers after `labels`. The caller checks the md5 of the result; `where` names the file.
    """
    pixels = b""
    labels: list[int] = []
    found: set[bytes] = set()
    key = b""
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if isinstance(argument, str):
                argument = argument.encode("latin1", "replace")
            if isinstance(argument, bytes) and argument in _KEYS:
                key = argument
                found.add(key)
            elif isinstance(argument, bytes) and key == b"data":
                pixels = max(pixels, argument, key=len)
            elif isinstance(argument, int) and key == b"labels" and opcode.name in _INTEGERS:
                labels.append(argument)
    except Exception as error:  # a broken pickle may fail in any way: pickle's documentation
        raise DataError(
            f"{where} is not a readable pickle ({type(error).__name__}: {error})"
        ) from error
    if not {b"data", b"labels"} <= found:
        raise DataError(f"{where} has no b'data' and b'labels'")
    return pixels, labels


def _most_complete(data_dir: Path) -> _Home:
    """Return the first complete folder, or the one with the fewest missing files."""
    homes = [
        _Home(folder, pickled)
        for _, name, pickled in _LAYOUTS
        for folder in (data_dir / name, data_dir)
    ]
    return min(homes, key=lambda home: len(home.missing()))


def _find(data_dir: Path) -> _Home:
    """Return the folder to read, for which an archive may be unpacked."""
    found = _most_complete(data_dir)
    for archive, name, pickled in _LAYOUTS if found.missing() else ():
        home = _Home(data_dir / name, pickled)
        if _is_file(data_dir / archive) and not home.folder.exists():
            extract(
                data_dir / archive,
                home.folder,
                prefix=name,
                names={home.path(file).name for file in FILES},
                # Pickles also contain names and padding.
                limit_bytes=2 * sum(file.size_bytes for file in FILES) + (1 << 20),
            )
            return _most_complete(data_dir)
    return found


def _advice(data_dir: Path) -> str:
    return f"Fetch it with: stepscope data get cifar10 --data-dir {data_dir}"


def _read(data_dir: Path, home: _Home, file: RecordFile) -> bytes:
    found, content = home.examine(file)
    if found["status"] != "ok":
        fault = f"{found['status']}; {found['detail']}"
        raise DataError(f"CIFAR-10 file {home.path(file)}: {fault}. {_advice(data_dir)}")
    return content


def check(data_dir: Path) -> None:
    """Raise a DataError if files are missing or have a wrong size; read and unpack nothing."""
    home = _most_complete(data_dir)
    missing = home.missing()
    if missing:
        if any(_is_file(data_dir / archive) for archive, _, _ in _LAYOUTS):
            return
        raise DataError(
            f"CIFAR-10 is not complete in {data_dir}: missing {', '.join(missing)} "
            f"(looked in {data_dir}, {BIN_FOLDER}/ and {PY_FOLDER}/). {_advice(data_dir)}"
        )
    for file in FILES:
        found_bytes = home.path(file).stat().st_size
        if not home.pickled and found_bytes != file.size_bytes:
            raise DataError(
                f"CIFAR-10 file {home.path(file)} has the wrong size: wanted {file.size_bytes} "
                f"bytes, found {found_bytes}. {_advice(data_dir)}"
            )


def load(split: Split, data_dir: Path, samples: int | None = None) -> MemorySamples:
    """Read the first `samples` of a split (see `samples_taken`) into memory, checked."""
    files, count = FILES.needed(split, samples)
    home = _find(data_dir)
    parts = [np.frombuffer(_read(data_dir, home, file), dtype=np.uint8) for file in files]
    records = np.concatenate(parts).reshape(-1, RECORD_BYTES)[:count]
    return MemorySamples(*unpack(records))


def open_files(split: Split, data_dir: Path, samples: int | None = None) -> RecordFiles:
    """Check the record files of a split and open them; python files are converted once.

    Checking reads the files into the page cache.
    """
    files, count = FILES.needed(split, samples)
    home = _find(data_dir)
    if home.pickled:
        binary = _Home(data_dir / BIN_FOLDER, pickled=False)
        for file in FILES:
            if binary.examine(file)[0]["status"] != "ok":
                write_atomically(binary.path(file), [_read(data_dir, home, file)])
        home = binary
    for file in files:
        _read(data_dir, home, file)
    return RecordFiles([home.path(file) for file in files], files[0].records, count)


def get(data_dir: Path, report: Callable[[str], None]) -> None:
    """Download the data set into `data_dir`, unless it is there and valid."""
    from stepscope.data.datasets.cifar_download import get_cifar10

    get_cifar10(data_dir, report)


def verify(data_dir: Path) -> list[VerifiedFile]:
    """Check every file against the published md5s."""
    try:
        home = _find(data_dir)
    except DataError as error:
        return [{"file": "archive", "status": "unreadable", "detail": str(error)}]
    return [home.examine(file)[0] for file in FILES]


def describe(reading: DataSource) -> DataSet:
    """Return the description, which does not depend on the data source."""
    return DataSet(
        name="cifar10",
        class_names=CLASS_NAMES,
        train_samples=FILES.count("train"),
        test_samples=FILES.count("test"),
        check=check,
        get=get,
        verify=verify,
        records=Records(load, open_files, MEAN, STD),
    )
