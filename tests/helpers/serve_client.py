"""Start `stepscope serve`, and a client that sends any request."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

from stepscope_command import Stepscope

Start = Callable[..., "Served"]


@dataclass(frozen=True)
class Reply:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class Served:
    """A server that runs, and how to ask it."""

    url: str
    process: subprocess.Popen[str]

    def ask(self, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> Reply:
        """Send exactly this path; no client tidies it first."""
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host="Host" in (headers or {}))
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders()
            got = connection.getresponse()
            text = got.read().decode()
            return Reply(got.status, {k.lower(): v for k, v in got.getheaders()}, text)

    def wait_for(self, path: str, words: str) -> Reply:
        """Ask until the answer has some words in it."""
        give_up_s = monotonic() + 60
        while words not in (reply := self.ask(path)).text:
            assert monotonic() < give_up_s, f"{path} never said {words!r}"
            sleep(0.1)
        return reply

    def news(self, path: str) -> dict[str, Any]:
        """Ask as the page itself does."""
        found: dict[str, Any] = json.loads(self.ask(f"/new{path}").text)
        return found


@contextlib.contextmanager
def start_serving() -> Iterator[Start]:
    """Give a function that starts servers; end them all."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, *flags: str) -> Served:
        command = ("serve", folder, "--port", 0, "--json", *flags)
        process = Stepscope(folder).start(*command)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        return Served(json.loads(line)["url"], process)

    try:
        yield start
    finally:
        for process in started:
            process.send_signal(signal.SIGINT)
        for process in started:
            process.communicate(timeout=30)
