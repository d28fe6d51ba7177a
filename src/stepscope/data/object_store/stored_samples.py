"""Samples of a data set in an object store: one object each, or shards of 1,000 samples.

`fetch` returns the content of objects, from the store or from a folder of downloaded files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from stepscope.data.object_store.manifest import ManifestEntry
from stepscope.data.object_store.store_client import ObjectStore, RequestStats
from stepscope.data.tar_shards import Shard, decode_image, unpack_shard
from stepscope.errors import DataError

Fetch = Callable[[Sequence[ManifestEntry]], list[bytes]]

SHARDS_KEPT = 2  # a batch may span the end of one shard and the start of the next


class StoredObjects:
    """Samples stored as one object each."""

    def __init__(self, fetch: Fetch, entries: Sequence[ManifestEntry]) -> None:
        self._fetch, self._entries = fetch, tuple(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fetch the samples, all at once."""
        entries = [self._entries[index] for index in indices.tolist()]
        images = [
            decode_image(body, f"object {entry.key}")
            for entry, body in zip(entries, self._fetch(entries), strict=True)
        ]
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            raise DataError(f"images of one data set differ in shape: {sorted(shapes)}")
        return np.stack(images), np.array([entry.label for entry in entries], dtype=np.int64)


class StoredShards:
    """Samples stored in shards."""

    def __init__(self, fetch: Fetch, entries: Sequence[ManifestEntry], samples: int) -> None:
        """Take the first `samples` of the shards in `entries`."""
        self._fetch, self._entries, self._length = fetch, tuple(entries), samples
        self._starts = np.cumsum([0, *(entry.samples for entry in self._entries)])
        self._kept: OrderedDict[int, Shard] = OrderedDict()

    def __len__(self) -> int:
        return self._length

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return samples from cached shards; fetch missing shards first."""
        shards = np.searchsorted(self._starts, indices, side="right") - 1
        self._keep(np.unique(shards).tolist())
        images, labels = [], []
        for shard, index in zip(shards.tolist(), indices.tolist(), strict=True):
            place = int(index - self._starts[shard])
            images.append(self._kept[shard].image(place))
            labels.append(self._kept[shard].labels[place])
        while len(self._kept) > SHARDS_KEPT:
            self._kept.popitem(last=False)
        return np.stack(images), np.array(labels, dtype=np.int64)

    def _keep(self, needed: Sequence[int]) -> None:
        missing = [shard for shard in needed if shard not in self._kept]
        entries = [self._entries[shard] for shard in missing]
        bodies = self._fetch(entries) if entries else []
        for shard, entry, body in zip(missing, entries, bodies, strict=True):
            self._kept[shard] = unpack_shard(body, entry.key, entry.samples)
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
