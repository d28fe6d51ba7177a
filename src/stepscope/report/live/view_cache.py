"""A cache of views, which are made again when their files change.

Small runs are read at once; a large run is read in another process, and until its view is ready the
page says so. So every response takes less than half a second.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from stepscope.report.live.live_views import View, message, view_of, view_of_list
from stepscope.report.live.run_index import Library, Stamp
from stepscope.report.live.view_process import ViewProcess
from stepscope.units import format_bytes

_AT_ONCE_BYTES = 500_000  # about 2,500 steps, read and drawn in 0.1 s
_PATIENCE_S = 0.2
_MOST_KEPT = 100
_MOST_APART = 3

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
            apart = self._read_in_process(key, stamp)
        apart.ask(stamp, _PATIENCE_S)
        with self._lock:
            if apart.view is None:
                size = format_bytes(sum(size for _, _, size in stamp))
                return message("Reading", f"{size} are being read: a moment.", goes_on=True)
            if apart.stamp == stamp and not apart.view.goes_on:
                return self._keep(key, stamp, apart.view)
            return apart.view

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
            self._processes[key] = ViewProcess(self._library, key)
        self._processes.move_to_end(key)
        while len(self._processes) > _MOST_APART:
            self._processes.popitem(last=False)[1].end()
        return self._processes[key]
