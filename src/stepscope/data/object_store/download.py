"""Download the objects of a split into a folder; continue an interrupted download.

Files are written atomically under their object's key. Existing files are checked against the
manifest; damaged ones are downloaded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.data.object_store.manifest import FILE, Manifest, ManifestEntry, read_manifest
from stepscope.data.object_store.store_client import ObjectStore, RequestStats
from stepscope.files import write_atomically

AT_ONCE = 256  # objects between two reports


@dataclass(frozen=True)
class DownloadProgress:
    """The progress of a download."""

    done_bytes: int
    total_bytes: int
    left_s: float | None


Report = Callable[[DownloadProgress], None]


def fetch_manifest(store: ObjectStore) -> Manifest:
    """Return the manifest of a bucket."""
    [content] = store.get([FILE], [lambda body: None])
    return read_manifest(content, f"{FILE} of {store.address}")


def download(
    store: ObjectStore,
    entries: Sequence[ManifestEntry],
    folder: Path,
    report: Report,
    stats: RequestStats,
) -> float:
    """Download all missing objects; return the seconds that the requests took.

    Adds the requests to `stats`.
    """
    missing = [entry for entry in entries if not _is_there(folder, entry)]
    total_bytes = sum(entry.size_bytes for entry in entries)
    lacking_bytes = sum(entry.size_bytes for entry in missing)
    fetched_bytes, fetching_s = 0, 0.0
    report(DownloadProgress(total_bytes - lacking_bytes, total_bytes, None))
    for start in range(0, len(missing), AT_ONCE):
        some = missing[start : start + AT_ONCE]
        began = time.monotonic()
        bodies = store.get([each.key for each in some], [each.check for each in some], stats)
        fetching_s += time.monotonic() - began
        for entry, body in zip(some, bodies, strict=True):
            write_atomically(folder / entry.key, [body])
        fetched_bytes += sum(entry.size_bytes for entry in some)
        left_s = fetching_s * (lacking_bytes - fetched_bytes) / fetched_bytes
        report(DownloadProgress(total_bytes - lacking_bytes + fetched_bytes, total_bytes, left_s))
    return fetching_s


def _is_there(folder: Path, entry: ManifestEntry) -> bool:
    try:
        return entry.check((folder / entry.key).read_bytes()) is None
    except (FileNotFoundError, NotADirectoryError):
        return False
