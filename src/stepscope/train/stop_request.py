"""Stop requests: signals from the parent that end the training between two steps.

Only the supervising parent handles the terminal. It sends SIGTERM to stop the training, or SIGUSR1
when memory is short. The training finishes its step, writes a checkpoint and exits.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

from stepscope.errors import Interrupted, OutOfMemoryError
from stepscope.records.types import RunMessage

T = TypeVar("T")

# Sends one message to the parent process.
Send = Callable[[RunMessage], None]


class StopNow(BaseException):
    """Raised by the signal handler while the training waits for a batch.

    Not an Exception: torch's loader catches those while it waits for its workers.
    """


@dataclass
class StopRequest:
    """Whether a stop was requested.

    A request takes effect at the end of the step. While the loop is `at_rest`, waiting for a batch
    that may never come, it takes effect at once: nothing has changed since the last step.
    """

    requested: bool = False
    at_rest: bool = False
    for_memory: bool = False

    def listen(self) -> None:
        """Handle SIGTERM and SIGUSR1 as requests; leave Ctrl-C to the parent."""
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
        """Wait for a batch; None at the end of the epoch, or if a stop was requested."""
        try:
            try:
                self.at_rest = True  # first: from here on a signal raises
                return None if self.requested else next(batches, None)
            finally:
                self.at_rest = False
        except StopNow:
            return None

    def consult(self) -> None:
        """Combine requests with other ranks after a step; a single process has none."""

    def agree(self) -> None:
        """Wait until all ranks know of a request; a single process does not wait."""

    def check(self) -> None:
        """Raise if a stop was requested. Call between steps only."""
        if self.for_memory:
            raise OutOfMemoryError("memory ran short, and the run ended between two steps")
        if self.requested:
            raise Interrupted("stopped on request, between two steps")
