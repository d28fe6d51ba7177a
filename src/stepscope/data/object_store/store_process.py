"""Requests in a separate process: `python -m stepscope.data.object_store.store_process`.

The training process forks its loader workers, and the client's threads do not survive a fork: a
worker whose parent had sent a request would wait for ever. The training therefore sends its
requests from this process. The request is one line of JSON on standard input; the answer is lines
of JSON on standard output: progress, and finally the result or an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepscope.data.dataset import Split
from stepscope.data.object_store.download import DownloadProgress, download, fetch_manifest
from stepscope.data.object_store.manifest import Manifest, manifest_of
from stepscope.data.object_store.store_client import Account, ObjectStore
from stepscope.data.object_store.store_url import Address
from stepscope.errors import StepscopeError, error_of

Report = Callable[[DownloadProgress], None]


@dataclass(frozen=True)
class Wanted:
    """The samples to download, and their folder."""

    split: Split
    samples: int
    folder: Path


@dataclass(frozen=True)
class Brought:
    """The manifest of a bucket and the cost of the download, if any."""

    manifest: Manifest
    fetching_s: float
    account: Account


def ask_store_process(
    address: Address, wanted: Wanted | None = None, report: Report = lambda progress: None
) -> Brought:
    """Read the manifest, and download samples, in a separate process.

    `report` may raise to end the process; downloaded files stay.
    """
    request: dict[str, Any] = {"url": address.url, "endpoint_url": address.endpoint_url}
    if wanted is not None:
        request["wanted"] = {**asdict(wanted), "folder": str(wanted.folder)}
    with subprocess.Popen(
        [sys.executable, "-m", "stepscope.data.object_store.store_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    ) as process:
        assert process.stdin is not None, "it is a pipe"
        assert process.stdout is not None, "it is a pipe"
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if answer["type"] == "progress":
                    report(DownloadProgress(**answer["progress"]))
                else:
                    return _brought(answer)
        finally:
            process.kill()
    raise StepscopeError(f"{address}: the process that asked ended without a word")


def _brought(answer: dict[str, Any]) -> Brought:
    if answer["type"] == "error":
        raise error_of(answer["exit_code"], answer["message"])
    account = Account(**answer["account"])
    return Brought(manifest_of(answer["manifest"]), answer["fetching_s"], account)


def main() -> None:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.readline())
    store = ObjectStore(Address(request["url"], request["endpoint_url"]))
    try:
        _say({"type": "done", **_answer(store, request.get("wanted"))})
    except StepscopeError as error:
        _say({"type": "error", "exit_code": error.exit_code, "message": str(error)})


def _answer(store: ObjectStore, wanted: dict[str, Any] | None) -> dict[str, Any]:
    def report(progress: DownloadProgress) -> None:
        _say({"type": "progress", "progress": asdict(progress)})

    account, fetching_s = Account(), 0.0
    manifest = fetch_manifest(store)
    if wanted is not None:
        entries = manifest.first(wanted["split"], wanted["samples"])
        fetching_s = download(store, entries, Path(wanted["folder"]), report, account)
    return {
        "manifest": manifest.to_json(),
        "fetching_s": fetching_s,
        "account": asdict(account),
    }


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
