"""Upload a data set to a bucket, as objects or shards, with a manifest of checksums.

Objects that exist with the right size and md5 (the entity tag) are not sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from stepscope.data.dataset import Split
from stepscope.data.object_store.manifest import FILE, Layout, Manifest, ManifestEntry
from stepscope.data.object_store.store_client import ObjectStore, RequestStats
from stepscope.data.object_store.stored_samples import encode_image, pack_shard
from stepscope.data.sample_order import BLOCK
from stepscope.data.samples import MemorySamples

AT_ONCE = 256


@dataclass(frozen=True)
class Upload:
    """The result of an upload: objects sent, objects kept, and retries."""

    manifest: Manifest
    sent: int
    kept: int
    sent_bytes: int
    retries: int


def put(
    name: str,
    load: Callable[[Split], MemorySamples],
    layout: Layout,
    store: ObjectStore,
    report: Callable[[str], None],
) -> Upload:
    """Upload both splits of a data set; write the manifest last."""
    there, stats = store.listing(), RequestStats()
    at_once = 1 if layout == "shards" else AT_ONCE  # a shard is large
    entries: dict[Split, list[ManifestEntry]] = {"train": [], "test": []}
    for split, of_split in entries.items():
        samples = load(split)
        objects = _objects(split, samples, layout)
        while group := list(islice(objects, at_once)):
            missing = [
                (entry.key, body)
                for entry, body in group
                if there.get(entry.key)
                != (len(body), hashlib.md5(body, usedforsecurity=False).hexdigest())
            ]
            if missing:
                store.put([key for key, _ in missing], [body for _, body in missing], stats)
            of_split += [entry for entry, _ in group]
        report(f"{split}: {len(samples):,} samples in {len(of_split):,} objects")
    manifest = Manifest(name, layout, tuple(entries["train"]), tuple(entries["test"]))
    store.put([FILE], [manifest.to_json().encode()])
    sent = len(stats.times_s)
    kept = len(manifest.train) + len(manifest.test) - sent
    return Upload(manifest, sent, kept, stats.bytes, stats.retries)


def _objects(
    split: Split, samples: MemorySamples, layout: Layout
) -> Iterator[tuple[ManifestEntry, bytes]]:
    """Yield the objects of a split, each with its manifest entry."""
    if layout == "objects":
        for number, (image, label) in enumerate(zip(samples.images, samples.labels, strict=True)):
            body = encode_image(image)
            yield _entry(f"{split}/{number:06d}.png", body, label=int(label)), body
        return
    for shard, start in enumerate(range(0, len(samples), BLOCK)):
        labels = samples.labels[start : start + BLOCK]
        body = pack_shard(start, samples.images[start : start + BLOCK], labels)
        yield _entry(f"{split}/shard-{shard:06d}.tar", body, samples=len(labels)), body


def _entry(key: str, body: bytes, **held: int) -> ManifestEntry:
    return ManifestEntry(key, len(body), hashlib.sha256(body).hexdigest(), **held)
