"""A thread that looks at the script now and then, without being noticed by it.

The stack sampler uses it, and the heartbeat: a file is touched while the script's stack changes,
since a long evaluation or compilation completes no step and is no hang. The parent sees the file's
time.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import gc
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import get_ident

from stepscope.hardware.stack_dump import HEARTBEAT, STEPPED
from stepscope.records.csv_log import file_identity

INTERVAL_S = 0.02  # 50 samples a second took 0.3 % of steps of 1.2 ms
_HEARTBEAT_EVERY_S = 0.5
_DEEPEST = 200  # frames that the heartbeat compares
_SWITCH_S = 0.005  # Python's own interval
_QUICK_SWITCH_S = 0.0002
_FEW_THREADS = 2  # ours, and one that mostly waits: a worker's queue, a progress bar
_SIGNALS = signal.valid_signals()
_uniform = Random(0).uniform


class SamplingThread:
    """Calls a function some times a second, in a thread that the script does not notice.

    It is started below `threading` and blocks all signals. No garbage is collected in it, so the
    script's finalizers run in the script's own threads. It pauses while the process forks. It ends
    before the interpreter does: a thread that outlives the interpreter is unwound by force, and
    with torch loaded that aborts the process.
    """

    def __init__(self, look: Callable[[], object], interval_s: float = INTERVAL_S) -> None:
        self.interval_s = interval_s
        self._look = look
        self._stops = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()
        self._native_id = 0
        self._runs = False

    def start(self) -> None:
        """Start the thread; without one, if this machine gives none, nothing is sampled."""
        _pause_at_forks()
        _started.add(self)
        atexit.register(self.stop)
        self.resume()

    def stop(self) -> None:
        """End the thread and wait for its end, at most a second."""
        _started.discard(self)
        atexit.unregister(self.stop)
        self.pause()

    def resume(self) -> None:
        """Start the thread, again after a fork."""
        self._stops, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._stops.acquire()
        self._ended.acquire()
        with contextlib.suppress(RuntimeError):  # too many threads
            _thread.start_new_thread(self._run, (self._stops, self._ended))
            self._runs = True

    def pause(self) -> None:
        """End the thread until `resume`."""
        if self._runs:
            self._runs = False
            _set_switch_interval(quick=False)
            self._stops.release()
            self._ended.acquire(timeout=1.0)

    def await_removal(self) -> None:
        """Wait until the kernel has removed the ended thread, some 50 us.

        From 3.12 on, Python warns about a fork in a process that has threads.
        """
        task = Path(f"/proc/self/task/{self._native_id}")
        for _ in range(50):
            if not self._native_id or not task.exists():
                return
            time.sleep(0.0001)

    def _run(self, stops: _thread.LockType, ended: _thread.LockType) -> None:
        self._native_id = _thread.get_native_id()
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with contextlib.suppress(Exception):  # the script continues without samples
            interval_s = self.interval_s
            while not stops.acquire(True, interval_s):
                _set_switch_interval(quick=_thread._count() <= _FEW_THREADS)
                collects = gc.isenabled()
                gc.disable()
                try:
                    self._look()
                    # Not at regular intervals, which a regular script would meet at the same line
                    # every time. Not by the shared generator: its numbers are the script's.
                    interval_s = self.interval_s * _uniform(0.5, 1.5)
                finally:
                    if collects:
                        gc.enable()
        ended.release()


def _set_switch_interval(quick: bool) -> None:
    """Let a sample wait shortly for the interpreter lock.

    Otherwise it comes whenever the script next calls what releases the lock, such as an operation
    of torch, and shows that call instead of the loop in Python before it. This lessens the bias and
    does not remove it: after 1 ms of Python, a call of some microseconds still gets 60 % of the
    time, 88 % without. A script with threads or an interval of its own keeps its interval.
    """
    before_s, after_s = (_SWITCH_S, _QUICK_SWITCH_S) if quick else (_QUICK_SWITCH_S, _SWITCH_S)
    if math.isclose(sys.getswitchinterval(), before_s):
        sys.setswitchinterval(after_s)


_started: set[SamplingThread] = set()


@functools.cache
def _pause_at_forks() -> None:
    """Let no thread of ours run while this process forks, nor in the child."""

    def pause() -> None:
        for thread in tuple(_started):
            thread.pause()
        for thread in tuple(_started):
            thread.await_removal()

    def resume() -> None:
        for thread in tuple(_started):
            thread.resume()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=pause, after_in_parent=resume, after_in_child=lambda: _started.clear()
        )


class Heartbeat:
    """Touches a file if the stack has changed twice in a row.

    Twice: a loop that polls and sleeps is seen outside its sleep now and then. It also notes the
    first step, whose row may still be in memory when the script hangs.
    """

    def __init__(self, file: int, count_steps: Callable[[], int]) -> None:
        self._file, self._identity = file, file_identity(file)
        self._count_steps, self._has_stepped = count_steps, False
        self._watched = get_ident()
        self._thread = SamplingThread(self._beat, _HEARTBEAT_EVERY_S)
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
