"""Access to Linux's pseudo files; empty elsewhere, or where they cannot be read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Generic, TypeVar

from stepscope.errors import RequestError

T = TypeVar("T")
U = TypeVar("U")

_MOST_DIGITS = 20
_LONGEST_NUMBER_BYTES = 64
_LONGEST_NAME = 200  # characters
_LONGEST_BYTES = 1 << 20  # longer files are not pseudo files, and may be endless
_PIECE_BYTES = 1 << 16
_AT_ONCE = os.O_RDONLY | os.O_NONBLOCK  # do not wait for a pipe in place of a file


@dataclass(frozen=True)
class Reading(Generic[T]):
    """The content of such a file or, without a value, the reason."""

    value: T | None
    reason: str | None = None

    def map(self, convert: Callable[[T], U]) -> Reading[U]:
        """Return the converted value, or the same reason."""
        return Reading(None if self.value is None else convert(self.value), self.reason)


def read_text(file: Path) -> Reading[str]:
    """Read such a file, without trailing blanks and zero bytes."""
    try:
        text = read_at_once(file).decode("utf-8", "replace").strip("\0 \t\r\n")
    except (FileNotFoundError, NotADirectoryError):
        return Reading(None, f"{file} does not exist")
    except OSError as error:
        return Reading(None, f"{file} cannot be read: {error.strerror}")
    return Reading(text) if text else Reading(None, f"{file} is empty")


def read_at_once(file: Path | str) -> bytes:
    """Read a file without a Python file object, which takes four times as long."""
    said, opened = b"", os.open(file, _AT_ONCE)
    try:
        while len(said) < _LONGEST_BYTES and (piece := os.read(opened, _PIECE_BYTES)):
            said += piece
    finally:
        os.close(opened)
    return said


def read_name(file: Path) -> Reading[str]:
    """Read a name for display and records: one line of printable characters."""
    text = read_text(file)
    if text.value is None:
        return text
    name = " ".join(text.value.split())
    if not name:
        return Reading(None, f"{file} is empty")
    if len(name) > _LONGEST_NAME:
        return Reading(None, f"{file}: expected a name, found {len(name):,} characters")
    return Reading("".join(each if each.isprintable() else "\ufffd" for each in name))


def read_integer(file: Path) -> Reading[int]:
    """Read the integer in such a file; other content is a reason too."""
    try:  # read ten times a second: 8 µs, 28 with a file object
        opened = os.open(file, _AT_ONCE)
        try:
            said = os.read(opened, _LONGEST_NUMBER_BYTES).strip(b"\0 \t\r\n")
        finally:
            os.close(opened)
    except OSError:
        said = b""
    if said.isdigit() and len(said) <= _MOST_DIGITS:
        return Reading(int(said))
    text = read_text(file)
    if text.value is None:
        return Reading(None, text.reason)
    if not re.fullmatch(rf"[+-]?[0-9]{{1,{_MOST_DIGITS}}}", text.value):
        return Reading(None, f"{file}: wanted a whole number, found {text.value[:40]!r}")
    return Reading(int(text.value))


def matching(folder: Path, pattern: str) -> list[Path]:
    """List matches below a folder; empty if it cannot be read, unlike `Path.glob`."""
    return [folder / name for name in sorted(glob(pattern, root_dir=folder))]  # noqa: PTH207


def is_there(path: Path) -> bool:
    """Return whether a path exists; False if it cannot be accessed, unlike `Path.exists`."""
    return os.access(path, os.F_OK)


def lines_of(file: Path) -> list[str]:
    """Return the lines of such a file; empty if it cannot be read."""
    return bytes_of(file).decode("utf-8", "replace").splitlines()


def sizes_in(file: Path | str) -> dict[str, int]:
    """Return the sizes in a process's `status`, or in `meminfo`, by name, in bytes."""
    sizes = {}
    for line in bytes_of(file).split(b"\n"):
        name, _, value = line.removesuffix(b" kB").partition(b":")
        if line.endswith(b" kB") and value.strip().isdigit():  # a process's name may be anything
            sizes[name.decode("utf-8", "replace")] = int(value) * 1024
    return sizes


def bytes_of(file: Path | str) -> bytes:
    """Return the bytes of such a file; empty if it cannot be read."""
    try:
        return read_at_once(file)
    except OSError:
        return b""


def stat_fields(process: str) -> list[bytes]:
    """Return the fields of a `stat` after the name, which may hold spaces and brackets."""
    return bytes_of(f"{process}/stat").rpartition(b")")[2].split()


VARIABLE = "STEPSCOPE_SYSTEM_ROOT"


def system_root() -> Path:
    """Return the root of the pseudo files: `/`, unless STEPSCOPE_SYSTEM_ROOT names a tree."""
    named = os.environ.get(VARIABLE)
    if not named:
        return Path("/")
    if not Path(named).is_dir():
        raise RequestError(
            f"{VARIABLE}: wanted a folder with proc/ and sys/, but {named!r} is not a folder. "
            "Correct or unset the variable."
        )
    return Path(named).absolute()
