"""The loader workers of a run, and the detection of workers that die.

Torch raises from its SIGCHLD handler wherever the training is. This module raises only while the
training waits for data, inside blocking calls: elsewhere Python may swallow the exception or
corrupt its state. A killed worker may hold a lock of the shared queues, so the others are killed
as well. Torch has no public API for this: the module uses names with a leading underscore.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from types import FrameType
from typing import Any

from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader
from torch.utils.data._utils.signal_handling import _set_SIGCHLD_handler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from stepscope.errors import MachineError, limit_reached

Workers = Sequence[BaseProcess]

# A connection to a worker breaks a moment before the worker has an exit code.
_EXIT_CODE_WITHIN_S = 1.0
# Only a process that hangs in the kernel survives SIGKILL for longer.
_KILLED_WITHIN_S = 5.0
_AGAIN_AFTER_S = 0.05
_CANNOT_SEND = 75  # exit code of a worker

# The functions in which torch's loader blocks: for data, a lock, or the end of a worker.
_BLOCKING = frozenset(
    {
        ("selectors", "select"),
        ("multiprocessing.connection", "_recv"),
        ("multiprocessing.synchronize", "__enter__"),
        ("threading", "wait"),
    }
)


class LostWorker(BaseException):
    """A worker has died, or could not be started.

    Not an Exception: torch's loader catches those while it waits.
    """


@dataclass(frozen=True)
class Fallback:
    """A loader continues with fewer workers from `batch` of the epoch on, counted from 1."""

    split: str
    epoch: int
    batch: int
    before: int
    after: int
    reason: str


class WorkerPool:
    """The number of workers of all loaders of a run, and the detection of those that die."""

    def __init__(self, workers: int, on_fallback: Callable[[Fallback], None]) -> None:
        self.workers = workers
        self._on_fallback = on_fallback
        self._awaited: Workers = ()
        self._news = self._starting = self._watching = False
        self._handler_before: Any = None

    def start(self, loader: DataLoader[Any], kept: Iterator[Any] | None) -> Iterator[Any]:
        """Start an epoch: start workers, or reuse those that were `kept` from the previous epoch.

        Raises `LostWorker` if that fails, and leaves none of them running.
        """
        if loader.num_workers == 0:
            return iter(loader)
        self._watch()
        try:
            self._starting = self._news = True  # a kept worker may have died since
            with self.awaiting(kept):
                made = iter(loader)
            _take_over(made)
            return made
        except BaseException as error:
            half_made = _iterator_in(error)
            if half_made is not None:
                end_at_once(half_made)
            if isinstance(error, OSError | RuntimeError | MemoryError):
                cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise LostWorker(f"cannot start a worker: {cause}") from error
            raise
        finally:
            self._starting = False

    def end(self, batches: Iterator[Any]) -> None:
        """Shut down the workers of a loader; kill them if one has died."""
        if not isinstance(batches, _MultiProcessingDataLoaderIter):
            return
        try:
            self._news = True
            with self.awaiting(batches):
                batches._shutdown_workers()
        except LostWorker:
            end_at_once(batches)

    def drop_worker(self, split: str, epoch: int, batch: int, reason: str) -> None:
        """Continue with one worker fewer, and report it."""
        self.workers -= 1
        self._on_fallback(Fallback(split, epoch, batch, self.workers + 1, self.workers, reason))

    def stop_watching(self) -> None:
        """Restore the previous signal handler."""
        # `==`: a bound method is a new object each time. A handler that replaced ours stays.
        if self._watching and signal.getsignal(signal.SIGCHLD) == self._on_child:
            signal.signal(signal.SIGCHLD, self._handler_before)
            self._watching = False

    @contextlib.contextmanager
    def awaiting(self, batches: Iterator[Any] | None) -> Iterator[None]:
        """Wait for the workers of an iterator. Raises `LostWorker` if one of them has died."""
        workers = workers_of(batches)
        try:
            self._awaited = workers  # first: from here on a death interrupts
            if self._news:
                self._news = False
                if died := _died(workers):
                    raise LostWorker(_describe(died))
            yield
        except (RuntimeError, OSError, EOFError) as error:
            self._awaited = ()
            # Torch's own check found a dead worker, or the connection to one broke.
            ended = _ended(workers)
            if not ended:
                if workers and isinstance(limit := limit_reached(error), MachineError):
                    raise LostWorker(str(limit)) from error
                raise
            raise LostWorker(_describe(ended)) from error
        finally:
            self._awaited = ()

    def _watch(self) -> None:
        # Only the main thread can set a handler; otherwise torch's own check must do.
        if not self._watching and threading.current_thread() is threading.main_thread():
            _set_SIGCHLD_handler()  # now, or torch would replace our handler with the first worker
            self._handler_before = signal.signal(signal.SIGCHLD, self._on_child)
            self._watching = True

    def _on_child(self, number: int, frame: FrameType | None) -> None:
        # While workers start, torch still watches them and its handler would raise.
        if callable(self._handler_before) and not self._starting:
            self._handler_before(number, frame)
        self._news = True
        if died := _died(self._awaited):
            _send_again_soon(number)  # if this is no place to raise, or the exception is swallowed
            if frame is not None:
                function = frame.f_globals.get("__name__"), frame.f_code.co_name
                if function in _BLOCKING:
                    raise LostWorker(_describe(died))


def workers_of(batches: Iterator[Any] | None) -> Workers:
    """Return the worker processes of a loader's iterator, which may be partly constructed."""
    workers: Workers = getattr(batches, "_workers", ())
    return workers


def _take_over(made: Iterator[Any]) -> None:
    """Unregister workers from torch, so that its handler does not raise."""
    if getattr(made, "_worker_pids_set", False):
        _remove_worker_pids(id(made))
        made._worker_pids_set = False  # type: ignore[attr-defined]


def end_at_once(batches: _MultiProcessingDataLoaderIter) -> None:
    """Kill the workers of an iterator, and keep torch from shutting them down.

    Torch would wait for locks that a dead worker may hold.
    """
    batches._shutdown = True
    _take_over(batches)
    if hasattr(batches, "_pin_memory_thread_done_event"):
        batches._pin_memory_thread_done_event.set()
    workers = workers_of(batches)
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join(_KILLED_WITHIN_S)
        for left in Path("/dev/shm").glob(f"torch_{worker.pid}_*"):  # it would stay for good
            left.unlink(missing_ok=True)


def _iterator_in(error: BaseException) -> _MultiProcessingDataLoaderIter | None:
    """Return the partly constructed iterator, to which only the traceback has a reference."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        found = frame.f_locals.get("self")
        if isinstance(found, _MultiProcessingDataLoaderIter):
            return found
    return None


def end_worker_that_cannot_send() -> None:
    """End this worker if it cannot pass a batch on: torch would wait for that batch forever.

    It needs room in /dev/shm and a file descriptor for each tensor.
    """

    def end(error: Exception, batch: object) -> None:
        print(f"a batch could not be passed on: {error}", file=sys.stderr, flush=True)
        os._exit(_CANNOT_SEND)

    Queue._on_queue_feeder_error = staticmethod(end)  # type: ignore[attr-defined]


def _ended(workers: Workers) -> Workers:
    """Return the workers that have ended, or are about to."""
    if workers:
        sentinels = [each.sentinel for each in workers]
        at_their_end = connection.wait(sentinels, _EXIT_CODE_WITHIN_S)
        for worker in workers:
            if worker.sentinel in at_their_end:
                worker.join(_EXIT_CODE_WITHIN_S)
    return [worker for worker in workers if worker.exitcode is not None]


def _died(workers: Workers) -> Workers:
    """Return the workers that have died. Finished workers have exit code 0."""
    return [worker for worker in workers if worker.exitcode not in (None, 0)]


def _send_again_soon(number: int) -> None:
    def send() -> None:
        time.sleep(_AGAIN_AFTER_S)
        os.kill(os.getpid(), number)

    # Not `threading`, whose locks the interrupted code may hold.
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(send, ())


def _describe(ended: Workers) -> str:
    known = {_CANNOT_SEND: "could not pass a batch on: /dev/shm is full, or ulimit -n is too low"}
    killed = {-each.value: f"was killed by {each.name}" for each in signal.Signals}
    return " and ".join(
        f"worker (pid {worker.pid}) "
        + (known | killed).get(worker.exitcode or 0, f"exited with code {worker.exitcode}")
        for worker in ended
    )
