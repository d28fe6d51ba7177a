"""Read a manifest and download a split in a separate process.

The client's threads do not survive a fork: a loader worker whose parent had sent a request would
wait for ever. The process is `python -m stepscope.data.object_store.store_process`; the request on
its standard input and the answers on its standard output are pickles.

Downloaded files are written atomically under their object's key. Existing files are checked against
the manifest; damaged ones are downloaded again, so an interrupted download continues.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.data.dataset import Split
from stepscope.data.object_store.manifest import FILE, Manifest, ManifestEntry, read_manifest
from stepscope.data.object_store.store_client import ObjectStore, RequestStats
from stepscope.data.object_store.store_url import Address
from stepscope.errors import StepscopeError, error_of
from stepscope.files import write_atomically

AT_ONCE = 256  # objects between two reports


@dataclass(frozen=True)
class DownloadProgress:
    """The progress of a download."""

    done_bytes: int
    total_bytes: int
    left_s: float | None


Report = Callable[[DownloadProgress], None]


@dataclass(frozen=True)
class DownloadRequest:
    """The samples to download, and their folder."""

    split: Split
    samples: int
    folder: Path


@dataclass(frozen=True)
class StoreAnswer:
    """The manifest of a bucket and the cost of the download, if any."""

    manifest: Manifest
    fetching_s: float
    stats: RequestStats


@dataclass(frozen=True)
class _Failure:
    exit_code: int
    message: str


def ask_store_process(
    address: Address, wanted: DownloadRequest | None = None, report: Report = lambda progress: None
) -> StoreAnswer:
    """Read the manifest, and download samples, in a separate process.

    `report` may raise to end the process; downloaded files stay.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "stepscope.data.object_store.store_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    ) as process:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        try:
            pickle.dump((address, wanted), process.stdin)
            process.stdin.flush()
            while True:
                match pickle.load(process.stdout):
                    case DownloadProgress() as progress:
                        report(progress)
                    case StoreAnswer() as answer:
                        return answer
                    case _Failure(exit_code, message):
                        raise error_of(exit_code, message)
        except EOFError:
            raise StepscopeError(
                f"{address}: the process that sends requests exited without a result"
            ) from None
        finally:
            process.kill()


def main() -> None:
    """Answer the request on standard input."""
    address, wanted = pickle.load(sys.stdin.buffer)
    store, stats, fetching_s = ObjectStore(address), RequestStats(), 0.0
    try:
        manifest = fetch_manifest(store)
        if wanted is not None:
            entries = manifest.first(wanted.split, wanted.samples)
            fetching_s = download(store, entries, wanted.folder, _send, stats)
        _send(StoreAnswer(manifest, fetching_s, stats))
    except StepscopeError as error:
        _send(_Failure(error.exit_code, str(error)))


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


def _send(answer: DownloadProgress | StoreAnswer | _Failure) -> None:
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.flush()


if __name__ == "__main__":
    # Pickles name a class by its module, which is not `__main__` for the parent.
    from stepscope.data.object_store import store_process

    store_process.main()
