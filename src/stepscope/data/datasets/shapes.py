"""The built-in data set: ten classes of drawn 32x32 figures, generated in seconds.

Each image has one figure of random place, size, tilt and colour over a noisy gradient. The usual
CIFAR-10 augmentation is harmless: no class changes under a flip or a shift by four pixels.

The bytes are part of the interface: sample i of a split depends only on the data seed, the split
and i, so `--samples N` is a prefix and results of different machines are comparable. Drawing
therefore uses splitmix64 and only operations that IEEE 754 rounds in one way (float32, no sine).
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.data.dataset import IMAGE_SHAPE, DataSet, DataSource, Records, Split
from stepscope.data.sample_order import GOLDEN, Words, mix
from stepscope.data.samples import (
    IMAGE_BYTES,
    RECORD_BYTES,
    MemorySamples,
    PublishedFiles,
    RecordFile,
    RecordFiles,
    examine,
    inspect,
    pack,
)
from stepscope.errors import DataError
from stepscope.files import cache_folder, replace_file, write_atomically
from stepscope.records.types import VerifiedFile, VerifiedFolder

# Of the training pixels divided by 255; tests/data/datasets/test_shapes.py computes them again.
MEAN = (0.499510, 0.500643, 0.500577)
STD = (0.148021, 0.148539, 0.148247)

FOLDER = "shapes-v1"
CACHED_FROM = 2_000  # samples of a file: fewer are drawn each time, in about 0.1 s
FILES = PublishedFiles(
    train=tuple(
        RecordFile(f"train_{number}.bin", 10_000, md5, crc32)
        for number, (md5, crc32) in enumerate(
            (
                ("fbaf27c35d32ee7184cdf28e5dcafc38", 0xC6E1_B3CF),
                ("dc89d6142bcdb301297b1dddfcf4667b", 0x47B4_EFAF),
                ("7bdb4a756c488f54bad1b1f96066b756", 0x3B0A_7F11),
                ("7ffde23488aa6a418adc664ed6ff1f49", 0xF593_00DD),
                ("de75dc96420d6ffcf1f069aef49523fd", 0x8AAB_0B73),
            ),
            start=1,
        )
    ),
    test=(RecordFile("test.bin", 10_000, "c393b9c82b480fd7fdbd85c9ed5cb1e5", 0xBB7C_AFCD),),
)

_SEED = 0x5EED_5A4E_5001
_SPLIT_KEYS: dict[Split, int] = {"train": 0x7261_696E, "test": 0x7465_7374}
_WORDS_A_SAMPLE = 512  # random 64-bit words: 32 for the figure, the rest for noise
_FIGURE_WORDS = 32
_NOISE_WORDS = IMAGE_BYTES // 8
_PIECE = 500  # records per read or write: 1.5 MB, which fits a second-level cache
_BLOCK = 200  # samples drawn at once, to fit a second-level cache; does not affect the bytes

Floats = npt.NDArray[np.floating[Any]]

_WORD = (1 << 64) - 1


def _random_words(split: Split, index: np.ndarray, first: int, count: int) -> Words:
    """Return `count` random uint64 words for each sample, [n, count], from word `first` on."""
    key = np.uint64((_SEED * GOLDEN + _SPLIT_KEYS[split] * 0xD134_2543_DE82_EF95) & _WORD)
    counter: Words = np.empty((len(index), count), dtype=np.uint64)
    counter[:] = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    counter += index.astype(np.uint64)[:, None] * np.uint64(_WORDS_A_SAMPLE)
    counter *= np.uint64(GOLDEN)
    counter += key
    return mix(counter)


def labels_of(split: Split, index: np.ndarray) -> np.ndarray:
    """Return the classes of samples: each ten neighbours have each class once, shuffled."""
    number: Words = index.astype(np.uint64)
    decade, place = number // np.uint64(10), number % np.uint64(10)
    words: Words = decade * np.uint64(GOLDEN) + np.uint64(_SEED ^ _SPLIT_KEYS[split])
    word = mix(words)
    step = np.array([1, 3, 7, 9], dtype=np.uint64)[(word >> np.uint64(60)) & np.uint64(3)]
    labels: np.ndarray = (place * step + (word >> np.uint64(8)) % np.uint64(10)) % np.uint64(10)
    return labels.astype(np.int64)


# Each class: how far a point lies outside its figure, in units of the figure's radius; negative
# inside. u goes right, v down, from the figure's centre; x and y are their magnitudes.
Figure = Callable[[Floats, Floats, Floats, Floats], Floats]
FIGURES: dict[str, Figure] = {
    "disc": lambda u, v, x, y: np.sqrt(u * u + v * v) - 0.95,
    "ring": lambda u, v, x, y: np.abs(np.sqrt(u * u + v * v) - 0.78) - 0.2,
    "square": lambda u, v, x, y: np.maximum(x, y) - 0.85,
    "frame": lambda u, v, x, y: np.abs(np.maximum(x, y) - 0.7) - 0.18,
    "triangle": lambda u, v, x, y: np.maximum(v - 0.75, x * 0.873 - (v + 1.0) * 0.488),
    "plus": lambda u, v, x, y: _plus(x, y),
    "cross": lambda u, v, x, y: _plus(np.abs(u + v) * 0.7071, np.abs(u - v) * 0.7071),
    "rows": lambda u, v, x, y: _bars(x, y),
    "columns": lambda u, v, x, y: _bars(y, x),
    "checker": lambda u, v, x, y: np.maximum(
        (x - 0.31) * (y - 0.31) * -4.0, np.maximum(x, y) - 0.93
    ),
}
CLASS_NAMES: tuple[str, ...] = tuple(FIGURES)


def _plus(x: Floats, y: Floats) -> Floats:
    arms: Floats = np.maximum(np.minimum(x, y) - 0.24, np.maximum(x, y) - 1.0)
    return arms


def _bars(along: Floats, across: Floats) -> Floats:
    bars: Floats = np.minimum(across, np.abs(across - 0.72)) - 0.18  # three of them
    ends: Floats = np.maximum(bars, along - 0.9)
    return ends


def _draw(split: Split, index: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Draw the samples `index`, whose labels must be sorted; return uint8 [n, 3, 32, 32]."""
    words = _random_words(split, index, 0, _FIGURE_WORDS)
    uniform = (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    unit = iter(uniform.T[:, :, None])  # columns [n, 1], each in [0, 1)

    def between(low: float, high: float) -> Floats:
        drawn: Floats = next(unit) * np.float32(high - low) + np.float32(low)
        return drawn

    radius = between(6.5, 11.0)
    reach = np.float32(14.0) - radius  # the largest offset that keeps the figure inside
    x = np.arange(32, dtype=np.float32) - np.float32(15.5)
    right = (x - between(-1.0, 1.0) * reach) / radius
    down = (x - between(-1.0, 1.0) * reach) / radius
    half_tangent = between(-0.09, 0.09)  # of the tilt: at most about ten degrees
    scale = np.float32(1.0) + half_tangent * half_tangent
    cos = (np.float32(1.0) - half_tangent * half_tangent) / scale
    sin = (half_tangent + half_tangent) / scale
    u = (right * cos)[:, None, :] + (down * sin)[:, :, None]
    v = (down * cos)[:, :, None] - (right * sin)[:, None, :]

    outside = np.empty_like(u)
    x_size, y_size = np.abs(u), np.abs(v)
    edges = np.searchsorted(labels, np.arange(len(FIGURES) + 1))
    for distance, start, stop in zip(FIGURES.values(), edges[:-1], edges[1:], strict=True):
        one = slice(start, stop)
        outside[one] = distance(u[one], v[one], x_size[one], y_size[one])
    # The edge of the figure is one pixel wide, from 1 to 0.
    cover = np.minimum(np.maximum(np.float32(0.5) - outside * radius[:, :, None], 0.0), 1.0)

    slope_right, slope_down = between(-1.2, 1.2), between(-1.2, 1.2)
    light = (x * slope_right)[:, None, :] + (x * slope_down)[:, :, None]
    lighter = np.where(next(unit) < np.float32(0.5), np.float32(-1.0), np.float32(1.0))
    contrast = between(14.0, 100.0) * lighter
    roughness = between(0.8, 3.0)

    noise = _random_words(split, index, _FIGURE_WORDS, _NOISE_WORDS)
    grain = noise.astype("<u8", copy=False).view(np.uint8).reshape(len(index), *IMAGE_SHAPE)
    # Two 16-sided dice from each byte: a triangular distribution from -15 to 15.
    dice = ((grain >> 4) + (grain & 15)).astype(np.float32)
    dice -= np.float32(15.0)
    dice *= roughness[:, :, None, None]
    for channel in range(3):
        strength = contrast * between(0.3, 1.0)
        figure = cover * strength[:, :, None]
        figure += light
        figure += (between(80.0, 175.0) - strength * np.float32(0.5))[:, :, None]
        dice[:, channel] += figure
    dice += np.float32(0.5)
    images: np.ndarray = np.minimum(np.maximum(dice, 0.0), 255.0)
    return images.astype(np.uint8)


def draw(split: Split, start: int, stop: int) -> MemorySamples:
    """Draw samples `start` to `stop` of a split; about 40 microseconds each on one core."""
    samples = _room_for(stop - start)
    _draw_into(samples, split, start)
    return samples


def _room_for(count: int) -> MemorySamples:
    images = np.empty((count, *IMAGE_SHAPE), dtype=np.uint8)
    return MemorySamples(images, np.empty(count, dtype=np.int64))


def _draw_into(samples: MemorySamples, split: Split, start: int) -> None:
    samples.labels[:] = labels_of(split, np.arange(start, start + len(samples)))
    for first in range(0, len(samples), _BLOCK):
        part = samples.labels[first : first + _BLOCK]
        order = np.argsort(part, kind="stable")
        samples.images[first + order] = _draw(split, start + first + order, part[order])


def load(split: Split, data_dir: Path, samples: int | None = None) -> MemorySamples:
    """Return the first samples of a split; `data_dir` is not used.

    Whole files are kept in the user's cache. Missing or damaged ones are drawn again.
    """
    files, count = FILES.needed(split, samples)
    loaded, folder = _room_for(count), _cache()
    for number, file in enumerate(files):
        start = number * file.records
        stop = min(count, start + file.records)
        part = MemorySamples(loaded.images[start:stop], loaded.labels[start:stop])
        if folder is None or len(part) < CACHED_FROM:
            _draw_into(part, split, start)
        elif not _read_cached(folder / file.name, file, part):
            _draw_into(part, split, start)
            if len(part) == file.records:
                with contextlib.suppress(OSError):  # drawn again next time
                    replace_file(folder / file.name, _records_of(part))
    return loaded


def _read_cached(path: Path, wanted: RecordFile, samples: MemorySamples) -> bool:
    """Read the first samples of a file; return whether the whole file has the expected crc32.

    Reads in pieces, so that the peak memory of a run is that of its training.
    """
    pixels = samples.images.reshape(len(samples), IMAGE_BYTES)
    piece = np.empty((_PIECE, RECORD_BYTES), dtype=np.uint8)
    checksum = 0
    try:
        if not path.is_file():  # opening a pipe would wait
            return False
        with path.open("rb") as file:
            for first in range(0, wanted.records, _PIECE):
                part = piece[: wanted.records - first]
                if file.readinto(part.data) != part.nbytes:
                    return False
                checksum = zlib.crc32(part.data, checksum)
                taken = part[: max(0, len(samples) - first)]
                samples.labels[first : first + len(taken)] = taken[:, 0]
                pixels[first : first + len(taken)] = taken[:, 1:]
    except OSError:
        return False
    return checksum == wanted.crc32


def _records_of(samples: MemorySamples) -> Iterator[bytes]:
    for first in range(0, len(samples), _PIECE):
        part = slice(first, first + _PIECE)
        yield pack(samples.images[part], samples.labels[part]).tobytes()


def _cache() -> Path | None:
    cache = cache_folder()
    return None if cache is None else cache / FOLDER


def open_files(split: Split, data_dir: Path, samples: int | None = None) -> RecordFiles:
    """Return the first samples of a split as files; missing and damaged files are drawn.

    Checking reads the files into the page cache.
    """
    files, count = FILES.needed(split, samples)
    for number, file in enumerate(files):
        path = data_dir / FOLDER / file.name
        if examine(path, file, len(CLASS_NAMES))[0]["status"] != "ok":
            drawn = draw(split, number * file.records, (number + 1) * file.records)
            records = pack(drawn.images, drawn.labels)
            found = inspect(records, file, len(CLASS_NAMES))
            if found["status"] != "ok":  # otherwise every run would draw the file again
                raise DataError(
                    f"this machine draws {file.name} differently ({found['detail']}). "
                    "Please report it; --source memory works nonetheless."
                )
            write_atomically(path, [records.tobytes()])
    paths = [data_dir / FOLDER / file.name for file in files]
    return RecordFiles(paths, files[0].records, count)


def get(data_dir: Path, report: Callable[[str], None]) -> None:
    """Write all record files in advance."""
    splits: tuple[Split, ...] = ("train", "test")
    for split in splits:
        report(f"drawing {split} samples into {data_dir / FOLDER}")
        open_files(split, data_dir)


def verify(data_dir: Path) -> list[VerifiedFile]:
    """Check the existing record files; missing ones are drawn on demand."""
    found = _verify_files(data_dir / FOLDER)
    for one in found:
        if one["status"] == "missing":
            one["status"], one["detail"] = "ok", "not written yet; drawn when needed"
    return found


def verify_cache() -> VerifiedFolder | None:
    """Check the files of the user's cache; damaged ones are drawn again on demand."""
    folder = _cache()
    if folder is None:
        return None
    return {
        "folder": str(folder),
        "size_bytes": sum(file.stat().st_size for file in folder.glob("*")),
        "files": [one for one in _verify_files(folder) if one["status"] != "missing"],
    }


def _verify_files(folder: Path) -> list[VerifiedFile]:
    return [examine(folder / file.name, file, len(CLASS_NAMES))[0] for file in FILES]


def describe(reading: DataSource) -> DataSet:
    """Return the description, which does not depend on the data source."""
    return DataSet(
        name="shapes",
        class_names=CLASS_NAMES,
        train_samples=FILES.count("train"),
        test_samples=FILES.count("test"),
        check=lambda data_dir: None,  # generated data cannot be missing
        get=get,
        verify=verify,
        records=Records(load, open_files, MEAN, STD),
        verify_cache=verify_cache,
    )
