"""How long the training lives: until it is done, is told to stop, or its parent is gone.

The supervising parent alone answers the terminal. It asks the training to stop with SIGTERM, or
with SIGUSR1 where memory runs short; the training ends its step, writes a checkpoint and goes.
Loader workers hear nothing of that.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from stepscope.errors import Interrupted, OutOfMemoryError
from stepscope.hardware.die_with_parent import die_with_parent

T = TypeVar("T")

# How the training tells its parent something: one plain mapping at a time.
Send = Callable[[dict[str, Any]], None]


class StopNow(BaseException):
    """Raised by the signal itself while the training is at rest.

    Not an Exception: torch's loader catches those while it waits for its workers.
    """


@dataclass
class StopRequest:
    """Whether somebody asked the training to stop.

    A request waits for the end of the step, except while the loop is `at_rest`: waiting for a batch
    that may never come, it has changed nothing since the last step and can go at once.
    """

    requested: bool = False
    at_rest: bool = False
    for_memory: bool = False

    def listen(self) -> None:
        """Take SIGTERM and SIGUSR1 as requests; leave Ctrl-C to the parent."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            self.for_memory = number == signal.SIGUSR1
        self.requested = True
        if self.at_rest:
            self.at_rest = False
            raise StopNow

    def next_batch(self, batches: Iterator[T]) -> T | None:
        """Wait for a batch; None when there is none left, or a stop was asked for."""
        try:
            try:
                self.at_rest = True  # first: a signal from here on is not only noted
                return None if self.requested else next(batches, None)
            finally:
                self.at_rest = False
        except StopNow:
            return None

    def consult(self) -> None:
        """Exchange requests with the other processes of the training: there are none."""

    def agree(self) -> None:
        """Wait until all processes of the training know of a request: there is one alone."""

    def check(self) -> None:
        """Raise when a stop was asked for. Called between steps only."""
        if self.for_memory:
            raise OutOfMemoryError("memory ran short, and the run ended between two steps")
        if self.requested:
            raise Interrupted("stopped on request, between two steps")


def start_worker(worker: int) -> None:
    """Set up a loader worker: the training decides when it ends, and it ends with the training."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(os.getppid())
    # The first to be killed when memory is short: the run goes on without a worker, not without
    # the training. Where there is no such file (not Linux) or it is not ours, the kernel chooses.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
