"""Standard output and error: a command's answer, and streams whose failure does not end a run."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar, cast

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

# A flag without a value, and without `--no-`.
Switch = Annotated[bool, Parameter(negative=(), show_default=False)]
AsJson = Annotated[
    bool,
    Parameter(
        negative=(),
        show_default=False,
        help="Print one JSON object, and nothing else, on standard output.",
    ),
]


def print_answer(found: T, show: Callable[[Console, T], None], *, as_json: bool) -> None:
    """Print the answer of a command: one JSON object, or tables."""
    if as_json:
        print(dumps(found))
    else:
        from rich.console import Console

        show(Console(), found)


class ForgivingStream:
    """Write to a stream until it fails; then discard output and keep the reason."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # rich asks for encoding, isatty and fileno

    def write(self, text: str) -> int:
        """Write text, or record the reason for the failure."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._go_quiet(error)
            return len(text)

    def flush(self) -> None:
        """Flush, or record the reason for the failure."""
        try:
            self._stream.flush()
        except OSError as error:
            self._go_quiet(error)

    def _go_quiet(self, error: OSError) -> None:
        self.failure = self.failure or error
        # Buffered output goes there too, so that Python reports no error at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def prepare_streams() -> tuple[ForgivingStream, ForgivingStream]:
    """Replace standard output and error by forgiving streams; return both."""
    _open_missing_descriptors()
    made = []
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name) or os.fdopen(descriptor, "w", encoding="utf-8", closefd=False)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        made.append(ForgivingStream(stream))
    sys.stdout, sys.stderr = cast("list[TextIO]", made)
    return made[0], made[1]


def lost_output(stdout: ForgivingStream) -> OSError | None:
    """Return why the output did not reach standard output; None if it did.

    A reader that has seen enough (`| head`) is no loss.
    """
    stdout.flush()
    failure = stdout.failure
    return None if failure is None or failure.errno == errno.EPIPE else failure


def _open_missing_descriptors() -> None:
    """Open closed standard descriptors, so that no pipe of ours gets their numbers."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)
