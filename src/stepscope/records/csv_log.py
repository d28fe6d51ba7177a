"""A CSV file that grows by rows and is readable at any time.

Rows are buffered and written with one system call once or twice a second, so that a short step does
not pay for a write, and a process killed with SIGKILL loses about a second.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic

from stepscope.errors import DISK_FULL_ERRNOS, disk_full
from stepscope.files import replace_file, sync_and_move

FLUSH_EVERY_S = 0.5
_TAIL_BYTES = 64 * 1024


class CsvLog:
    """Append rows to an existing file with a header."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[object] = []
        self._flushed_at = monotonic()
        self._file = os.open(path, os.O_RDWR | os.O_APPEND)
        self._identity = file_identity(self._file)
        _drop_cut_line(self._file)

    def append(self, row: object) -> None:
        """Buffer one or several rows; they are converted with `str` when they are written."""
        self._pending.append(row)
        if monotonic() - self._flushed_at >= FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Write all buffered rows to the operating system."""
        self._flushed_at = monotonic()
        if not self._pending:
            return
        data = ("\n".join(map(str, self._pending)) + "\n").encode()
        self._pending.clear()
        if file_identity(self._file) != self._identity:  # the descriptor was reused
            self._file = -1
            raise OSError(errno.EBADF, "closed by other code", str(self._path))
        write_all(self._file, data, str(self._path))

    def close(self) -> None:
        """Write the remaining rows and close the file."""
        if self._file < 0:
            return
        try:
            self.flush()
        finally:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def __enter__(self) -> CsvLog:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def write_all(file: int, data: bytes, name: str) -> None:
    """Write all bytes to an open file; the error of a full disk names the file."""
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise disk_full(error, name) from error
        raise


def file_identity(file: int) -> tuple[int, int]:
    """Return the identity of an open file, to detect a reused descriptor."""
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _drop_cut_line(file: int) -> None:
    """Remove a last line that a kill cut short, before the next row is appended."""
    size = os.fstat(file).st_size
    begin = max(0, size - _TAIL_BYTES)
    tail = os.pread(file, size - begin, begin)
    if not tail.endswith(b"\n"):
        os.ftruncate(file, begin + tail.rfind(b"\n") + 1)


def number(value: float | int | None) -> str:
    """Format a number for a CSV field: nine significant digits, empty if unknown."""
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    return format(value, ".9g")


def rows_of(lines: Iterable[str], columns: Sequence[str]) -> list[dict[str, str]]:
    """Read lines as rows, without those that a kill cut short."""
    split = (line.split(",") for line in lines)
    return [dict(zip(columns, row, strict=True)) for row in split if len(row) == len(columns)]


def last_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns of a CSV file, and those of its rows that are in its last 64 KiB."""
    with path.open("rb") as file:
        columns = file.readline().decode().rstrip("\n").split(",")
        begin = file.tell()
        file.seek(max(begin, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        *lines, _ = file.read().decode(errors="replace").split("\n")
    return columns, rows_of(lines, columns)


def keep_rows(path: Path, wanted: Callable[[dict[str, str]], bool]) -> None:
    """Rewrite a CSV file with the wanted rows only."""
    header, *lines, cut = path.read_text(encoding="utf-8", errors="replace").split("\n")
    columns = header.split(",")
    kept = []
    for line in lines:
        with contextlib.suppress(ValueError):
            if wanted(dict(zip(columns, line.split(","), strict=True))):
                kept.append(line)
    if cut or len(kept) < len(lines):
        replace_file(path, ["\n".join([header, *kept, ""]).encode()], sync_and_move)
