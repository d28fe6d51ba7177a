"""Sync a run folder while it grows: after a power cut, at most five seconds of rows are missing.

Only this thread waits for the disk, for which an SD card takes 50 ms a file and sometimes seconds.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from typing_extensions import Self

from stepscope.errors import MachineError
from stepscope.files import sync
from stepscope.records import schema
from stepscope.records.run_folder import RunFolder

SYNC_EVERY_S = 3.0  # rows are in memory for up to a second before


class FolderSync:
    """Sync the tables and events of a run folder in a thread, from its creation to its end.

    It does not wait for the last files if they are needed no sooner than the next command.
    """

    def __init__(self, folder: RunFolder, *, waits: bool = True) -> None:
        self._folder = folder
        self._waits = waits
        self._synced: dict[str, tuple[int, int, int]] = {}
        self._closing = threading.Event()
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="folder-sync")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._closing.set()
        if self._waits:
            self._thread.join()
            if self._failure is not None and raised[0] is None:
                raise MachineError(
                    f"cannot write {self._folder.path} to its disk: {self._failure}. Check the "
                    "disk; continue a run with `stepscope resume RUN`."
                ) from self._failure

    def _run(self) -> None:
        try:
            path = self._folder.path
            for folder in (path, path.absolute().parent):
                sync(folder)
            while not self._closing.wait(SYNC_EVERY_S):
                self._sync_changed()
            self._sync_changed()
        except FileNotFoundError:
            return  # the folder was removed, which who writes its record will notice
        except OSError as error:
            self._failure = error

    def _sync_changed(self) -> None:
        for name in (*schema.COLUMNS, schema.EVENTS):
            file = self._folder.path / name
            with contextlib.suppress(FileNotFoundError):
                self._sync_if_changed(name, file)

    def _sync_if_changed(self, name: str, file: Path) -> None:
        status = file.stat()
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._synced.get(name) != now:
            sync(file)
            self._synced[name] = now
