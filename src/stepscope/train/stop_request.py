"""Stop requests: signals from the parent that end the training between two steps.

Only the supervising parent handles the terminal. It sends SIGTERM to stop the training, or SIGUSR1
when memory is short. The training finishes its step, writes a checkpoint and exits.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from stepscope.errors import Interrupted, OutOfMemoryError
from stepscope.records.types import RunMessage

# Sends one message to the parent process.
Send = Callable[[RunMessage], None]


class StopNow(BaseException):
    """Raised by the signal handler while the training waits for a batch.

    Not an Exception: torch's loader catches those while it waits for its workers.
    """


@dataclass
class StopRequest:
    """Whether a stop was requested.

    A request takes effect at the end of the step, or at once inside `with stop:`, which waits for a
    batch that may never come.
    """

    requested: bool = False
    waiting: bool = False
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
        # Not in this file: nothing catches what `__enter__` and `__exit__` raise.
        if self.waiting and frame is not None and frame.f_code.co_filename != __file__:
            raise StopNow

    def __enter__(self) -> None:
        self.waiting = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.waiting = False
        return kind is StopNow

    def consult(self) -> None:
        """Combine requests with other ranks after a step; a single process has none."""

    def agree(self) -> None:
        """Wait until all ranks know of a request; a single process does not wait."""

    def check(self) -> None:
        """Raise if a stop was requested. Call between steps only."""
        if self.for_memory:
            raise OutOfMemoryError("memory was short, and the run ended between two steps")
        if self.requested:
            raise Interrupted("stopped on request, between two steps")
