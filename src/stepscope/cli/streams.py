"""Standard streams that cannot bring a run down.

A terminal may go away, a pipe's reader may stop reading, a descriptor may be closed from the start,
an encoding may lack a letter. None of that is a reason to lose a training.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO


class ForgivingStream(io.TextIOBase):
    """Write to a stream until it fails; from then on write to nowhere and remember why."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Tell rich which letters can be shown."""
        return self._stream.encoding

    def isatty(self) -> bool:
        """Say whether a person is looking on."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Give the descriptor, of which rich asks the width of the terminal."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Say yes: a write is never refused."""
        return True

    def write(self, text: str) -> int:
        """Write, or note why that cannot be done."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._go_quiet(error)
            return len(text)

    def flush(self) -> None:
        """Flush, or note why that cannot be done."""
        try:
            self._stream.flush()
        except OSError as error:
            self._go_quiet(error)

    def _go_quiet(self, error: OSError) -> None:
        self.failure = self.failure or error
        # What is still buffered goes there too, so that Python does not complain at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def prepare_streams() -> tuple[ForgivingStream, ForgivingStream]:
    """Put forgiving streams in the place of standard output and error; return both."""
    _open_missing_descriptors()
    made = []
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name) or os.fdopen(descriptor, "w", encoding="utf-8", closefd=False)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        made.append(ForgivingStream(stream))
    sys.stdout, sys.stderr = made[0], made[1]
    return made[0], made[1]


def lost_output(stdout: ForgivingStream) -> OSError | None:
    """Return why what was asked for on standard output did not get there.

    A reader that has seen enough (`| head`) is no loss.
    """
    stdout.flush()
    failure = stdout.failure
    return None if failure is None or failure.errno == errno.EPIPE else failure


def _open_missing_descriptors() -> None:
    """Keep a pipe of ours from getting the number of a standard stream that was closed."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)
