"""A data set of records in a bucket: checked before a run, then downloaded or streamed."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stepscope.data.dataset import DataSource, Split
from stepscope.data.object_store.manifest import Manifest
from stepscope.data.object_store.store_client import ObjectStore
from stepscope.data.object_store.store_process import DownloadRequest, ask_store_process
from stepscope.data.object_store.store_url import Address, parse_address
from stepscope.data.sample_order import BLOCK
from stepscope.data.samples import MemorySamples, Samples
from stepscope.errors import DataError, RequestError

if TYPE_CHECKING:
    from stepscope.data.object_store.request_latency import RequestTimes

FOLDER = "object-store"


@dataclass(frozen=True)
class Download:
    """A finished download: its start, the time of the requests, and the total time."""

    start_unix_s: float
    loading_s: float
    total_s: float
    items: int


@dataclass(frozen=True)
class StoredSplit:
    """The samples of a split, its requests, and its download if there was one."""

    samples: Samples
    requests: RequestTimes
    download: Download | None = None


def check(name: str, reading: DataSource, counts: dict[Split, int]) -> None:
    """Check that a run can read a bucket."""
    address = parse_address(reading.source, reading.endpoint_url)
    manifest = ask_store_process(address).manifest
    for split, wanted in counts.items():
        _check_holds(manifest, address, name, split, wanted)
    if reading.access == "stream" and manifest.layout == "shards" and reading.shuffle == "full":
        raise RequestError(
            f"shuffle: full cannot stream from {address}, which has shards: nearly every sample "
            "would read a whole shard. Use --shuffle block or --access download."
        )


def open_split(name: str, split: Split, count: int, reading: DataSource) -> StoredSplit:
    """Download the first `count` samples of a split, or open them for streaming."""
    from stepscope.data.object_store.request_latency import RequestTimes
    from stepscope.data.object_store.stored_samples import (
        StoredSamples,
        fetch_objects,
        read_files,
    )

    began_unix_s, began = time.time(), time.monotonic()
    address = parse_address(reading.source, reading.endpoint_url)
    on_retry = None if reading.on_retry is None else partial(reading.on_retry, split)
    times = RequestTimes(reading.workers, on_retry)
    downloads = reading.access == "download"
    folder = reading.data_dir / FOLDER / folder_name(address)

    request = DownloadRequest(split, count, folder) if downloads else None
    report = partial(reading.report, split) if reading.report else lambda progress: None
    answer = ask_store_process(address, request, report)
    manifest = answer.manifest
    _check_holds(manifest, address, name, split, count)
    fetch = (
        partial(read_files, folder)
        if downloads
        else partial(fetch_objects, ObjectStore(address), times.add)
    )
    stored = StoredSamples(fetch, manifest.first(split, count), count)
    if not downloads:
        return StoredSplit(stored, times)
    times.add(answer.stats)
    samples = MemorySamples(*stored.take(np.arange(count)))
    total_s = time.monotonic() - began
    download = Download(began_unix_s, answer.fetching_s, total_s, count)
    return StoredSplit(samples, times, download)


def folder_name(address: Address) -> str:
    """Return the name of the download folder: readable, and unique for an address."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{address.bucket}-{address.prefix}").strip("-.")
    return f"{readable[:60]}-{hashlib.sha256(str(address).encode()).hexdigest()[:8]}"


def _check_holds(
    manifest: Manifest, address: Address, name: str, split: Split, wanted: int
) -> None:
    """Raise if a bucket has another data set, too few samples, or another shard size."""
    if manifest.data != name:
        raise DataError(
            f"wanted {name} in {address}, found {manifest.data}. Use --data {manifest.data}, or "
            f"upload it with: stepscope data put {name} URL"
        )
    held = manifest.count(split)
    if held < wanted:
        raise DataError(
            f"wanted {wanted:,} {split} samples of {name} in {address}, found {held:,}. Give "
            f"--samples {manifest.count('train')} or fewer, or upload more with `stepscope data "
            "put`."
        )
    blocks = [entry.samples for entry in manifest.entries(split)[:-1]]
    if manifest.layout == "shards" and any(samples != BLOCK for samples in blocks):
        raise DataError(f"{address}: wanted shards of {BLOCK} samples, found others.")
