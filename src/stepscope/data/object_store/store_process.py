"""Requests in a separate process: `python -m stepscope.data.object_store.store_process`.

The client's threads do not survive a fork: a loader worker whose parent had sent a request would
wait for ever. The request on standard input and the answers on standard output are pickles.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.data.dataset import Split
from stepscope.data.object_store.download import DownloadProgress, download, fetch_manifest
from stepscope.data.object_store.manifest import Manifest
from stepscope.data.object_store.store_client import ObjectStore, RequestStats
from stepscope.data.object_store.store_url import Address
from stepscope.errors import StepscopeError, error_of

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


def _send(answer: DownloadProgress | StoreAnswer | _Failure) -> None:
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.flush()


if __name__ == "__main__":
    # Pickles name a class by its module, which is not `__main__` for the parent.
    from stepscope.data.object_store import store_process

    store_process.main()
