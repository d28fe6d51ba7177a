"""Samples of a data set in an object store: one PNG each, or tar shards of 1,000 samples.

A shard has the format of WebDataset: 000042.png and 000042.cls, its label as text. `fetch` returns
the content of objects, from the store or from a folder of downloaded files.
"""

from __future__ import annotations

import io
import tarfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from stepscope.data.object_store.manifest import ManifestEntry
from stepscope.data.object_store.store_client import ObjectStore, RequestStats
from stepscope.errors import DataError

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Fetch = Callable[[Sequence[ManifestEntry]], list[bytes]]

SHARDS_KEPT = 2  # a batch may span the end of one shard and the start of the next


_AGAIN = "Upload it again with `stepscope data put`."


def encode_image(image: Bytes) -> bytes:
    """Return an image [3, H, W] as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).save(file, "PNG")
    return file.getvalue()


def decode_image(body: bytes, name: str) -> Bytes:
    """Return the image [3, H, W] of a PNG file."""
    try:
        with Image.open(io.BytesIO(body), formats=("PNG",)) as image:
            pixels = np.asarray(image.convert("RGB"))
    except Exception as error:  # a decoder may raise anything for a broken file
        raise DataError(f"{name} is not a PNG image ({error}). {_AGAIN}") from None
    return pixels.transpose(2, 0, 1)


def pack_shard(first: int, images: Bytes, labels: Labels) -> bytes:
    """Return a tar shard of samples, the first of which has the number `first`."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as shard:
        for number, (image, label) in enumerate(zip(images, labels, strict=True), start=first):
            for suffix, content in (("png", encode_image(image)), ("cls", b"%d" % label)):
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    return file.getvalue()


@dataclass(frozen=True)
class Shard:
    """The samples of an object, in the order of their keys; images still as files."""

    name: str
    files: tuple[bytes, ...]
    labels: Labels

    def image(self, place: int) -> Bytes:
        """Decode one image [3, H, W]."""
        return decode_image(self.files[place], f"image {place} of {self.name}")


def unpack_object(body: bytes, entry: ManifestEntry) -> Shard:
    """Return the samples of an object: one, or a shard, joined with their labels by key."""
    if entry.label is not None:
        return Shard(f"object {entry.key}", (body,), np.array([entry.label], dtype=np.int64))
    name, samples = f"shard {entry.key}", entry.samples
    parts: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:") as shard:
            for member in shard:
                if content := shard.extractfile(member):
                    parts[member.name] = content.read()
        keys = sorted({member.partition(".")[0] for member in parts})
        files = tuple(parts[f"{key}.png"] for key in keys)
        labels = np.array([int(parts[f"{key}.cls"]) for key in keys], dtype=np.int64)
    except (tarfile.TarError, EOFError, KeyError, ValueError) as error:
        raise DataError(f"cannot read {name} ({error}). {_AGAIN}") from None
    if len(keys) != samples:
        raise DataError(f"{name}: wanted {samples} samples, found {len(keys)}. {_AGAIN}")
    return Shard(name, files, labels)


class StoredSamples:
    """Samples in objects of one or of many each; shards are kept for a while."""

    def __init__(self, fetch: Fetch, entries: Sequence[ManifestEntry], samples: int) -> None:
        """Take the first `samples` of the objects in `entries`."""
        self._fetch, self._entries, self._length = fetch, tuple(entries), samples
        self._starts = np.cumsum([0, *(entry.samples for entry in self._entries)])
        self._kept: OrderedDict[int, Shard] = OrderedDict()
        self._most_kept = SHARDS_KEPT if any(entry.label is None for entry in entries) else 0

    def __len__(self) -> int:
        return self._length

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return samples from cached shards; fetch what is missing first, all at once."""
        shards = np.searchsorted(self._starts, indices, side="right") - 1
        self._keep(np.unique(shards).tolist())
        images, labels = [], []
        for shard, index in zip(shards.tolist(), indices.tolist(), strict=True):
            place = int(index - self._starts[shard])
            images.append(self._kept[shard].image(place))
            labels.append(self._kept[shard].labels[place])
        while len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            raise DataError(f"images of one data set differ in shape: {sorted(shapes)}")
        return np.stack(images), np.array(labels, dtype=np.int64)

    def _keep(self, needed: Sequence[int]) -> None:
        missing = [shard for shard in needed if shard not in self._kept]
        entries = [self._entries[shard] for shard in missing]
        bodies = self._fetch(entries) if entries else []
        for shard, entry, body in zip(missing, entries, bodies, strict=True):
            self._kept[shard] = unpack_object(body, entry)
        for shard in needed:
            self._kept.move_to_end(shard)


def fetch_objects(
    store: ObjectStore, report: Callable[[RequestStats], None], entries: Sequence[ManifestEntry]
) -> list[bytes]:
    """Return the content of objects in a store; `report` receives the requests, failed or not."""
    stats = RequestStats()
    try:
        keys, checks = [entry.key for entry in entries], [entry.check for entry in entries]
        return store.get(keys, checks, stats)
    finally:
        report(stats)


def read_files(folder: Path, entries: Sequence[ManifestEntry]) -> list[bytes]:
    """Return the content of downloaded objects, which have been checked already."""
    try:
        return [(folder / entry.key).read_bytes() for entry in entries]
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename}, which was just downloaded: {error.strerror}. "
            f"Check that no other program changes {folder}."
        ) from error
