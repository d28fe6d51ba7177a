"""The stacks of a process, written to a file when it gets a signal, whatever it is doing.

`faulthandler` writes them in C without the interpreter lock, so a process that is blocked in a
library writes them too. Forked processes, such as loader workers, inherit this at no cost. The
signal is a real-time one that the process does not use; if the script sets a handler for it later,
another is taken. The first lines of the file say which: `signal 59 of 1234 on 7`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.hardware.procfs import bytes_of

STACKS_FILE = ".stacks"
# Notes in the file: there is a heartbeat; a step was made.
HEARTBEAT, STEPPED = b"heartbeat\n", b"stepped\n"

_ANNOUNCEMENT = re.compile(rb"^signal (\d+) of (\d+) on (\d+)$", re.MULTILINE)
_SETTLED_S = 0.06  # without a new byte: the stacks are complete
_WRITTEN_WITHIN_S = 1.0
_LOOK_EVERY_S = 0.01


# --- In the process


_installed: list[Path] = []  # in this process, or in the one that it was forked from


def installed_stack_dump() -> Path | None:
    """Return the file of this process, for those that it starts without a fork."""
    return _installed[0] if _installed else None


def install_stack_dump(path: Path) -> int | None:
    """Write the stacks to a file on a signal; return its descriptor, or None if that cannot be."""
    if sys.platform != "linux" or _installed:
        return None
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:  # a full disk: the parent reports the hang without stacks
        return None
    dump = _StackDump(file)
    if not dump.use_next_signal():
        os.close(file)
        return None
    dump.give_way(signal, "signal")
    dump.give_way(faulthandler, "register")
    _installed.append(path)
    return file


@dataclass
class _StackDump:
    """The signal on which this process writes its stacks."""

    file: int
    number: int | None = None
    _register: Callable[..., None] = faulthandler.register
    _left: list[int] = field(
        default_factory=lambda: list(range(signal.SIGRTMIN + 8, signal.SIGRTMAX - 4))
    )

    def use_next_signal(self) -> bool:
        """Use the next signal without a handler; return whether there was one."""
        before, self.number = self.number, None
        if before is not None:
            faulthandler.unregister(before)
        while self._left and self.number is None:
            number = self._left.pop()
            if signal.getsignal(number) is signal.SIG_DFL:
                with contextlib.suppress(OSError, RuntimeError, ValueError):
                    self._register(number, file=self.file, all_threads=True, chain=False)
                    os.write(self.file, b"signal %d of %d on %d\n" % self._place(number))
                    self.number = number
        return self.number is not None

    def _place(self, number: int) -> tuple[int, int, int]:
        return number, os.getpid(), self.file

    def give_way(self, module: ModuleType, name: str) -> None:
        """Let a function that sets a handler have the signal: another one is used from then on."""
        original = getattr(module, name)

        @functools.wraps(original)
        def set_handler(*arguments: Any, **named: Any) -> Any:
            wanted = arguments[0] if arguments else named.get("signalnum", named.get("signum"))
            if self.number is not None and wanted == self.number:
                self.use_next_signal()
            return original(*arguments, **named)

        setattr(module, name, set_handler)


# --- In its parent


@dataclass
class StackDumpFile:
    """The file of a process tree's stacks, as its parent uses it."""

    path: Path
    _touches: int = 0
    _seen: tuple[int, int] = (0, 0)  # size and time

    def touches(self) -> int:
        """Return how often the file was found touched without being written."""
        try:
            status = self.path.stat()
        except OSError:
            return self._touches
        seen = (status.st_size, status.st_mtime_ns)
        if seen[0] == self._seen[0] and seen[1] != self._seen[1]:
            self._touches += 1
        self._seen = seen
        return self._touches

    def has_note(self, note: bytes) -> bool:
        """Return whether the process has left a note."""
        return note in bytes_of(self.path)

    def request(self, pid: int, trainer: int) -> tuple[str | None, str | None]:
        """Return the stacks that a process writes now, or the reason for none."""
        if sys.platform != "linux":
            return None, "stacks are read on Linux only"
        try:
            text = self.path.read_bytes()
            known = {int(of): (int(n), int(on)) for n, of, on in _ANNOUNCEMENT.findall(text)}
            if not known:
                return None, "it does not write its stacks"
            number, file = known.get(pid) or known.get(trainer) or next(iter(known.values()))
            if not _catches(pid, number) or not _same_file(f"/proc/{pid}/fd/{file}", self.path):
                return None, "it is another program, or has closed its files"
            os.kill(pid, number)
            return self._written(len(text))
        except OSError as error:
            return None, error.strerror or str(error)

    def _written(self, offset: int) -> tuple[str | None, str | None]:
        """Wait until stacks are appended and complete."""
        began = grew_at = time.monotonic()
        size = offset
        while (now := time.monotonic()) - began < _WRITTEN_WITHIN_S:
            if (length := self.path.stat().st_size) != size:
                size, grew_at = length, now
            elif size > offset and now - grew_at > _SETTLED_S:
                break
            time.sleep(_LOOK_EVERY_S)
        if size == offset:
            return None, "it did not respond to the signal"
        with self.path.open("rb") as stream:
            stream.seek(offset)
            return stream.read().decode("utf-8", "replace"), None

    def remove(self) -> None:
        """Delete the file."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, which would end it otherwise."""
    found = re.search(rb"^SigCgt:\s*([0-9a-f]+)$", bytes_of(f"/proc/{pid}/status"), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def _same_file(opened: str, path: Path) -> bool:
    """Return whether a descriptor is still the file: the script may have closed it."""
    there, ours = os.stat(opened), path.stat()  # noqa: PTH116
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)
