"""The view of a large run, made in a separate process.

Reading a million steps takes seconds, and sorting them blocks every other thread. So the server
only passes on the last view that was made. The process keeps the tables, and reads only rows that
were added.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic

from stepscope.records.table import GrowingTable, Table
from stepscope.report.live.live_views import View, message, view_of
from stepscope.report.live.run_index import Library, Stamp

_REST = 4  # multiple of the time that a view takes: viewing must not slow the training


class ViewProcess:
    """A process that makes one view, and makes it again on request."""

    def __init__(self, library: Library, names: Sequence[str]) -> None:
        arguments = json.dumps([os.fspath(library.root), *names])
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is handled by the server
        )
        self._made = threading.Condition()
        self._asked: tuple[Stamp, float] | None = None
        self._ready_at_s = 0.0
        self.view: View | None = None
        self.stamp: Stamp | None = None
        threading.Thread(target=self._receive, daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether the process has ended, so that no view will come."""
        return self._process.poll() is not None

    def ask(self, stamp: Stamp, patience_s: float) -> None:
        """Wait for the view of these files; request it unless one is being made."""
        with self._made:
            if self.stamp == stamp:
                return
            if self._asked is None and monotonic() >= self._ready_at_s and not self.ended:
                self._asked = (stamp, monotonic())
                assert self._process.stdin is not None
                with contextlib.suppress(BrokenPipeError):  # `_receive` detects that it ended
                    self._process.stdin.write(b"\n")
                    self._process.stdin.flush()
            self._made.wait_for(lambda: self.stamp == stamp, patience_s)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._take(View(**json.loads(line)))
        code = self._process.wait()
        self._take(
            message(
                "This run could not be read",
                f"The process that read it ended with code {code}: was there too little memory? "
                "stepscope report RUN makes its page as a file.",
            )
        )

    def _take(self, view: View) -> None:
        with self._made:
            if self._asked is not None:
                self.stamp, asked_at_s = self._asked
                # The first view read the whole file: later ones take less time.
                rest_s = 0.0 if self.view is None else _REST * (monotonic() - asked_at_s)
                self._ready_at_s = monotonic() + rest_s
            self._asked, self.view = None, view
            self._made.notify_all()


def _make_when_asked(root: str, *names: str) -> None:
    library = Library(Path(root))
    tables: dict[Path, GrowingTable] = {}

    def read(path: Path) -> Table:
        return tables.setdefault(path, GrowingTable(path)).read()

    for _ in sys.stdin:
        print(json.dumps(asdict(view_of(library, names, read))), flush=True)


if __name__ == "__main__":
    _make_when_asked(*json.loads(sys.argv[1]))
