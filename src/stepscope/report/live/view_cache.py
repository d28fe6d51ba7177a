"""A cache of views, which are made again when their files change.

A large run is read in another process, which keeps its tables and reads only added rows: a million
steps take seconds and would block every other thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic

from stepscope.records.table import GrowingTable, Table
from stepscope.report.live.live_views import View, message, view_of, view_of_list
from stepscope.report.live.run_index import Library, Stamp
from stepscope.units import format_bytes

_AT_ONCE_BYTES = 500_000  # about 2,500 steps, read and drawn in 0.1 s
_PATIENCE_S = 0.2
_MOST_KEPT = 100
_MOST_PROCESSES = 3
_REST = 4  # multiple of the time that a view takes: viewing must not slow the training

Names = tuple[str, ...]


class ViewCache:
    """The views of a library, safe for any number of threads."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._kept: OrderedDict[Names, tuple[Stamp, View]] = OrderedDict()
        self._processes: OrderedDict[Names, ViewProcess] = OrderedDict()

    def list_records(self) -> View:
        """Return the view of the list."""
        with self._lock:
            entries = self._library.entries()
        return view_of_list(self._library.root, entries, time.time())

    def view(self, names: Sequence[str]) -> View:
        """Return the latest view of a record, or of several runs.

        Raises:
            NotThereError: one of them does not exist.
        """
        key = tuple(names)
        stamp = tuple(
            each for name in names for each in self._library.stamp(self._library.find(name))
        )
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == stamp:
                return kept[1]
            if sum(size for _, _, size in stamp) <= _AT_ONCE_BYTES:
                return self._keep(key, stamp, view_of(self._library, names))
            process = self._read_in_process(key, stamp)
        process.request(stamp)
        with self._lock:
            if process.view is None:
                size = format_bytes(sum(size for _, _, size in stamp))
                return message("Reading", f"Reading {size}, please wait.", active=True)
            if process.stamp == stamp and not process.view.active:
                return self._keep(key, stamp, process.view)
            return process.view

    def close(self) -> None:
        """End the processes that are still reading."""
        with self._lock:
            while self._processes:
                self._processes.popitem()[1].end()

    def _keep(self, key: Names, stamp: Stamp, view: View) -> View:
        """Cache a view, with the fingerprint of its files from before it was made."""
        self._kept[key] = (stamp, view)
        self._kept.move_to_end(key)
        while len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)
        if key in self._processes:
            self._processes.pop(key).end()
        return view

    def _read_in_process(self, key: Names, stamp: Stamp) -> ViewProcess:
        known = self._processes.get(key)
        if known is None or (known.ended and known.stamp != stamp):
            self._processes[key] = ViewProcess(self._library, key, stamp)
        self._processes.move_to_end(key)
        while len(self._processes) > _MOST_PROCESSES:
            self._processes.popitem(last=False)[1].end()
        return self._processes[key]


# --- Views of large runs, made in a process


class ViewProcess:
    """A process that makes one view, and makes it again on request."""

    def __init__(self, library: Library, names: Sequence[str], stamp: Stamp) -> None:
        arguments = json.dumps([os.fspath(library.root), *names])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stepscope.report.live.view_cache", arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is handled by the server
        )
        self._lock = threading.Lock()
        self._ready_at_s = 0.0
        self.view: View | None = None
        self.stamp: Stamp | None = None
        self._maker = self._start(stamp)

    @property
    def ended(self) -> bool:
        """Whether the process has ended, so that no view will come."""
        return self._process.poll() is not None

    def request(self, stamp: Stamp) -> None:
        """Wait a moment for the view of these files; make it unless one is being made."""
        with self._lock:
            idle = not self._maker.is_alive() and monotonic() >= self._ready_at_s
            if self.stamp != stamp and idle and not self.ended:
                self._maker = self._start(stamp)
        self._maker.join(_PATIENCE_S)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _start(self, stamp: Stamp) -> threading.Thread:
        thread = threading.Thread(target=self._make, args=(stamp,), daemon=True)
        thread.start()
        return thread

    def _make(self, stamp: Stamp) -> None:
        began_s = monotonic()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended, which an empty line shows below
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        if line := self._process.stdout.readline():
            view = View(**json.loads(line))
        else:
            view = message(
                "Cannot read this run",
                f"The process that read it exited with code {self._process.wait()}, perhaps out of "
                "memory. Write its page to a file instead: `stepscope report RUN`.",
            )
        if self.view is not None:  # the first view read the whole file: later ones take less time
            self._ready_at_s = monotonic() + _REST * (monotonic() - began_s)
        self.view, self.stamp = view, stamp


def _make_views(root: str, *names: str) -> None:
    """Print a view for each line of standard input."""
    tables: dict[Path, GrowingTable] = {}

    def read(path: Path) -> Table:
        return tables.setdefault(path, GrowingTable(path)).read()

    for _ in sys.stdin:
        print(json.dumps(asdict(view_of(Library(Path(root)), names, read))), flush=True)


if __name__ == "__main__":
    _make_views(*json.loads(sys.argv[1]))
