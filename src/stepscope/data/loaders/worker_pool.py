"""The loader workers of a run, and a watch for those that die.

Torch raises from its SIGCHLD handler wherever the training then is, in the middle of a backward
pass too. Here a death is noted, and raised only in a wait for data: the next, or the one under way,
and there out of the calls that block alone. Elsewhere Python might swallow it (in a callback of a
weak reference) or lose its bookkeeping (in the start of a thread); both were seen.

A worker that was killed may have taken a lock of the shared queues with it. Its fellows can then
neither go on nor be asked to end, so they are killed as well. Torch has no public way to do any of
this: the names of its own that are used here begin with an underscore.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, TypeVar

from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader
from torch.utils.data._utils.signal_handling import _set_SIGCHLD_handler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

T = TypeVar("T")
Workers = Sequence[BaseProcess]

# A connection to a worker breaks a moment before the worker is seen to have ended.
_END_IS_SEEN_WITHIN_S = 1.0
# Only a process that hangs in the kernel takes time to die of SIGKILL; it is not waited for.
_KILLED_WITHIN_S = 5.0
_AGAIN_AFTER_S = 0.05

# Where Python is while torch's loader waits: for data, for a lock, for a worker to end.
_BLOCKING = frozenset(
    {
        ("selectors", "select"),
        ("multiprocessing.connection", "_recv"),
        ("multiprocessing.synchronize", "__enter__"),
        ("threading", "wait"),
    }
)


class LostWorker(BaseException):
    """Raised in a wait that the workers will not end: one has died, or could not be started.

    Not an Exception: torch's loader catches those while it waits.
    """


@dataclass(frozen=True)
class Fallback:
    """A loader goes on with fewer workers. `batch`, from 1 in the epoch, is where it does.

    It is one more than the epoch has when nothing was left to make.
    """

    split: str
    epoch: int
    batch: int
    before: int
    after: int
    reason: str


class WorkerPool:
    """How many loader workers a run may have, and the watch for those that die.

    One for all loaders of a run, of which one is waited for at a time.
    """

    def __init__(self, workers: int, tell: Callable[[Fallback], None]) -> None:
        self.workers = workers
        self._tell = tell
        self._awaited: Workers = ()
        self._news = self._starting = self._watching = False
        self._handler_before: Any = None

    def start(self, loader: DataLoader[Any], kept: Iterator[Any] | None) -> Iterator[Any]:
        """Begin an epoch: start workers, or wake those that were `kept` from the epoch before.

        Raises `LostWorker` when that fails, and leaves none of them running.
        """
        if loader.num_workers == 0:
            return iter(loader)
        self._watch()
        try:
            self._starting = self._news = True  # news: of those kept, one may have died since
            made = self._wait(workers_of(kept), lambda: iter(loader))
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

    def next_of(self, batches: Iterator[T]) -> T:
        """Wait for a batch. Raises `LostWorker` when one of those who make it has died."""
        workers = workers_of(batches)
        return self._wait(workers, lambda: next(batches)) if workers else next(batches)

    def end(self, batches: Iterator[Any]) -> None:
        """End the workers of a loader: torch's way or, where one has died, at once."""
        if not isinstance(batches, _MultiProcessingDataLoaderIter):
            return
        try:
            self._news = True
            self._wait(workers_of(batches), batches._shutdown_workers)
        except LostWorker:
            end_at_once(batches)

    def go_on_with_one_less(self, split: str, epoch: int, batch: int, reason: str) -> None:
        """Count one worker less from now on, and tell of it."""
        self.workers -= 1
        self._tell(Fallback(split, epoch, batch, self.workers + 1, self.workers, reason))

    def stop_watching(self) -> None:
        """Put back the signal handler that was there before."""
        # `==`: a bound method is a new object each time. Somebody else's, put over ours, stays.
        if self._watching and signal.getsignal(signal.SIGCHLD) == self._on_child:
            signal.signal(signal.SIGCHLD, self._handler_before)
            self._watching = False

    def _wait(self, workers: Workers, get: Callable[[], T]) -> T:
        try:
            try:
                self._awaited = workers  # first: a death from here on interrupts
                if self._news:
                    self._news = False
                    if died := _died(workers):
                        raise LostWorker(_describe(died))
                return get()
            finally:
                self._awaited = ()
        except (RuntimeError, OSError, EOFError) as error:
            # Torch itself looks for dead workers now and then; or its connection to one broke.
            ended = _ended(workers)
            if not ended:
                raise
            raise LostWorker(_describe(ended)) from error

    def _watch(self) -> None:
        # Elsewhere than in the main thread no handler can be set: torch's own look has to do.
        if not self._watching and threading.current_thread() is threading.main_thread():
            _set_SIGCHLD_handler()  # torch does so once a process; with the workers it would be
            self._handler_before = signal.signal(signal.SIGCHLD, self._on_child)  # over ours
            self._watching = True

    def _on_child(self, number: int, frame: FrameType | None) -> None:
        # While workers start they are still in torch's care, and its handler would raise.
        if callable(self._handler_before) and not self._starting:
            self._handler_before(number, frame)
        self._news = True
        if died := _died(self._awaited):
            _send_again_soon(number)  # in case this is no place to raise, or it is swallowed
            if frame is not None and _blocks(frame):
                raise LostWorker(_describe(died))


def workers_of(batches: Iterator[Any] | None) -> Workers:
    """List the processes behind an iterator of torch's loader; one that is half made has fewer."""
    workers: Workers = getattr(batches, "_workers", ())
    return workers


def _take_over(made: Iterator[Any]) -> None:
    """Look after workers in torch's stead, so that its handler has nothing to raise."""
    if getattr(made, "_worker_pids_set", False):
        _remove_worker_pids(id(made))
        made._worker_pids_set = False  # type: ignore[attr-defined]


def end_at_once(batches: _MultiProcessingDataLoaderIter) -> None:
    """Kill the workers of an iterator, whole or half made, and keep torch from asking them to end.

    It would ask through locks that a dead worker may hold, and wait.
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


def _iterator_in(error: BaseException) -> _MultiProcessingDataLoaderIter | None:
    """Find the iterator that an error kept from being made: nobody else has a reference to it."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        found = frame.f_locals.get("self")
        if isinstance(found, _MultiProcessingDataLoaderIter):
            return found
    return None


def _ended(workers: Workers) -> Workers:
    """List the workers that have ended, or are about to."""
    if workers:
        sentinels = [each.sentinel for each in workers]
        at_their_end = connection.wait(sentinels, _END_IS_SEEN_WITHIN_S)
        for worker in workers:
            if worker.sentinel in at_their_end:
                worker.join(_END_IS_SEEN_WITHIN_S)
    return [worker for worker in workers if worker.exitcode is not None]


def _died(workers: Workers) -> Workers:
    """List the workers that have died. Those that were done ended with 0."""
    return [worker for worker in workers if worker.exitcode not in (None, 0)]


def _blocks(frame: FrameType) -> bool:
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _BLOCKING


def _send_again_soon(number: int) -> None:
    def send() -> None:
        time.sleep(_AGAIN_AFTER_S)
        os.kill(os.getpid(), number)

    # Not by `threading`, whose locks the interrupted code may hold. Where no thread can be started,
    # torch's own look at its workers has to do.
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(send, ())


def _describe(ended: Workers) -> str:
    return " and ".join(f"worker (pid {each.pid}) {_how(each.exitcode or 0)}" for each in ended)


def _how(exitcode: int) -> str:
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    number = -exitcode
    known = {each.value: each.name for each in signal.Signals}
    return f"was killed by {known.get(number, f'signal {number}')}"
