"""Samples that are streamed from an object store during training.

    StoredObjects   one request a sample, concurrent for a batch
    StoredShards    one request a shard of 1,000 samples; the last few are cached

Each process creates its own client after the fork.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from stepscope.data.object_store.manifest import ManifestEntry
from stepscope.data.object_store.store_client import ObjectStore, RequestStats
from stepscope.data.samples import checked
from stepscope.data.tar_shards import Bytes, Labels, Shard, decode_image, unpack_shard
from stepscope.errors import DataError

Note = Callable[[RequestStats], None]

SHARDS_KEPT = 2  # a batch may span the end of one shard and the start of the next


class StoredObjects:
    """Samples stored as one object each."""

    def __init__(self, store: ObjectStore, entries: Sequence[ManifestEntry], note: Note) -> None:
        """Read the objects of `entries`; `note` receives the stats of each call."""
        self._store, self._entries, self._note = store, tuple(entries), note

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read the samples concurrently."""
        wanted = [self._entries[index] for index in checked(indices, len(self)).tolist()]
        bodies = _fetch(self._store, wanted, self._note)
        return samples_of(wanted, bodies)


class StoredShards:
    """Samples stored in shards."""

    def __init__(
        self, store: ObjectStore, entries: Sequence[ManifestEntry], samples: int, note: Note
    ) -> None:
        """Read the first `samples` of the shards in `entries`."""
        self._store, self._entries, self._note = store, tuple(entries), note
        self._length = samples
        self._starts = np.cumsum([0, *(entry.samples for entry in self._entries)])
        self._kept: OrderedDict[int, Shard] = OrderedDict()

    def __len__(self) -> int:
        return self._length

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return samples from cached shards; read missing shards first."""
        chosen = checked(indices, len(self))
        shards = np.searchsorted(self._starts, chosen, side="right") - 1
        needed = np.unique(shards).tolist()
        self._bring(needed)
        images = [
            self._kept[shard].image(int(index - self._starts[shard]))
            for shard, index in zip(shards.tolist(), chosen.tolist(), strict=True)
        ]
        labels = [
            self._kept[shard].labels[index - self._starts[shard]]
            for shard, index in zip(shards.tolist(), chosen.tolist(), strict=True)
        ]
        while len(self._kept) > SHARDS_KEPT:
            self._kept.popitem(last=False)
        return np.stack(images), np.array(labels, dtype=np.int64)

    def _bring(self, needed: Sequence[int]) -> None:
        missing = [shard for shard in needed if shard not in self._kept]
        entries = [self._entries[shard] for shard in missing]
        for shard, entry, body in zip(
            missing, entries, _fetch(self._store, entries, self._note), strict=True
        ):
            self._kept[shard] = unpack_shard(body, entry.key, entry.samples)
        for shard in needed:
            self._kept.move_to_end(shard)


def samples_of(entries: Sequence[ManifestEntry], bodies: Sequence[bytes]) -> tuple[Bytes, Labels]:
    """Return the images and labels of objects with one sample each."""
    images = [
        decode_image(body, f"object {entry.key}")
        for entry, body in zip(entries, bodies, strict=True)
    ]
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise DataError(f"images of one data set differ in shape: {sorted(shapes)}")
    return np.stack(images), np.array([entry.label for entry in entries], dtype=np.int64)


def _fetch(store: ObjectStore, entries: Sequence[ManifestEntry], note: Note) -> list[bytes]:
    if not entries:
        return []
    stats = RequestStats()
    try:
        return store.get(
            [entry.key for entry in entries], [entry.check for entry in entries], stats
        )
    finally:
        note(stats)
