"""Upload a data set to a bucket, as objects or shards, with a manifest of checksums.

Objects that exist with the right size and md5 (the entity tag) are not sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stepscope.data.dataset import Split
from stepscope.data.object_store.manifest import FILE, Layout, Manifest, ManifestEntry
from stepscope.data.object_store.store_client import ObjectStore, RequestStats
from stepscope.data.sample_order import BLOCK
from stepscope.data.samples import MemorySamples
from stepscope.data.tar_shards import encode_image, pack_shard

AT_ONCE = 256


@dataclass(frozen=True)
class Upload:
    """The result of an upload: objects sent, objects kept, and retries."""

    manifest: Manifest
    sent: int
    kept: int
    sent_bytes: int
    retries: int


Listing = dict[str, tuple[int, str | None]]


def put(
    name: str,
    load: Callable[[Split], MemorySamples],
    layout: Layout,
    store: ObjectStore,
    report: Callable[[str], None],
) -> Upload:
    """Upload both splits of a data set; write the manifest last."""
    there, stats = store.listing(), RequestStats()
    entries: dict[Split, tuple[ManifestEntry, ...]] = {}
    kept = 0
    splits: tuple[Split, Split] = ("train", "test")
    for split in splits:
        samples = load(split)
        entries[split], skipped = _put_split(split, samples, layout, store, there, stats)
        kept += skipped
        report(f"{split}: {len(samples):,} samples in {len(entries[split]):,} objects")
    manifest = Manifest(name, layout, entries["train"], entries["test"])
    sent = len(stats.times_s)
    store.put([FILE], [manifest.to_json().encode()])
    return Upload(manifest, sent, kept, stats.bytes, stats.retries)


def _put_split(
    split: Split,
    samples: MemorySamples,
    layout: Layout,
    store: ObjectStore,
    there: Listing,
    stats: RequestStats,
) -> tuple[tuple[ManifestEntry, ...], int]:
    entries: list[ManifestEntry] = []
    pending: list[tuple[str, bytes]] = []
    kept = 0

    def send() -> None:
        if pending:
            store.put([key for key, _ in pending], [body for _, body in pending], stats)
        pending.clear()

    for entry, body in _objects(split, samples, layout):
        entries.append(entry)
        md5 = hashlib.md5(body, usedforsecurity=False).hexdigest()
        if there.get(entry.key) == (len(body), md5):
            kept += 1
            continue
        pending.append((entry.key, body))
        if len(pending) == AT_ONCE or layout == "shards":  # a shard is large: one at a time
            send()
    send()
    return tuple(entries), kept


def _objects(
    split: Split, samples: MemorySamples, layout: Layout
) -> Iterator[tuple[ManifestEntry, bytes]]:
    """Yield the objects of a split, each with its manifest entry."""
    if layout == "objects":
        for number, image in enumerate(samples.images):
            body = encode_image(image)
            label = int(samples.labels[number])
            yield _entry(f"{split}/{number:06d}.png", body, 1, label), body
        return
    for shard, start in enumerate(range(0, len(samples), BLOCK)):
        block = slice(start, start + BLOCK)
        body = pack_shard(start, samples.images[block], samples.labels[block])
        samples_in = len(samples.labels[block])
        yield _entry(f"{split}/shard-{shard:06d}.tar", body, samples_in, None), body


def _entry(key: str, body: bytes, samples: int, label: int | None) -> ManifestEntry:
    return ManifestEntry(key, len(body), hashlib.sha256(body).hexdigest(), samples, label)
