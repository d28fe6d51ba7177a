"""The heartbeat of a script: a file is touched while the script's stack changes.

A long evaluation or compilation completes no step and is no hang. A thread looks at the stack of
the traced thread about twice a second; the parent sees the file's time. It also notes the first
step, whose row may still be in memory when the script hangs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from threading import get_ident

from stepscope.hardware.stack_dump import HEARTBEAT, STEPPED
from stepscope.records.csv_log import file_identity
from stepscope.trace.stack_sampler import SamplingThread

_EVERY_S = 0.5
_DEEPEST = 200


class Heartbeat:
    """A thread that touches a file if the stack has changed twice in a row.

    Twice: a loop that polls and sleeps is seen outside its sleep now and then.
    """

    def __init__(self, file: int, count_steps: Callable[[], int]) -> None:
        self._file, self._identity = file, file_identity(file)
        self._count_steps, self._has_stepped = count_steps, False
        self._watched = get_ident()
        self._thread = SamplingThread(self._beat, _EVERY_S)
        self._stack: tuple[tuple[int, int], ...] = ()
        self._has_changed = False

    def start(self) -> None:
        """Start the thread."""
        self._note(HEARTBEAT)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._thread.stop()

    def _beat(self) -> None:
        if not self._has_stepped and self._count_steps():
            self._has_stepped = True
            self._note(STEPPED)
        stack = self._look()
        changed = stack != self._stack
        if changed and self._has_changed:
            self._note(b"")
        self._stack, self._has_changed = stack, changed

    def _look(self) -> tuple[tuple[int, int], ...]:
        frame, found = sys._current_frames().get(self._watched), list[tuple[int, int]]()
        while frame is not None and len(found) < _DEEPEST:
            found.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        return tuple(found)

    def _note(self, note: bytes) -> None:
        """Write a note or, without one, touch the file; not if the script has closed it."""
        with contextlib.suppress(OSError):
            if file_identity(self._file) == self._identity:
                if note:
                    os.write(self._file, note)
                else:
                    os.utime(self._file)
