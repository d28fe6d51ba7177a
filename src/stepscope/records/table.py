"""A CSV file of a record as columns: a million rows in seconds, in about ten bytes a number."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from stepscope.records import schema

_ROWS_AT_ONCE = 2_000  # what is split stays in the CPU's caches


class Numbers(array):  # type: ignore[type-arg]  # of Python 3.10
    """Numbers in eight bytes each, to be used like a list, and equal to one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.tolist() == list(other)

    def __ne__(self, other: object) -> bool:
        return not self == other


@dataclass(frozen=True)
class Table:
    """Columns by name; `None` is unknown. A column that the file lacks is unknown throughout."""

    columns: dict[str, Sequence[Any]]
    cut_lines: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> Sequence[Any]:
        found = self.columns.get(name)
        return [None] * len(self) if found is None else found

    def rows(self) -> Iterator[dict[str, Any]]:
        """Go through the rows as mappings from column to value."""
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))


class _Column:
    """A column while it is read: an array of numbers until something in it is unknown."""

    def __init__(self, name: str) -> None:
        self.values: Any
        self._to: Callable[[str], Any]
        if name in schema.WORDS:
            known: dict[str, str] = {}  # one object for each word, however often it comes
            self.values, self._to = [], lambda text: known.setdefault(text, text)
        elif name in schema.WHOLE_NUMBERS:
            self.values, self._to = Numbers("q"), int
        else:
            self.values, self._to = Numbers("d"), float

    def read(self, fields: Sequence[str]) -> Any:
        """Convert fields; raise ValueError if one is neither empty nor of the column's kind."""
        if "" not in fields and isinstance(self.values, Numbers):
            return Numbers(self.values.typecode, map(self._to, fields))
        if not any(fields):
            return [None] * len(fields)
        return [self._to(field) if field else None for field in fields]

    def take(self, values: Any) -> None:
        """Add values at the end."""
        if isinstance(self.values, Numbers) and not isinstance(values, Numbers):
            self.values = self.values.tolist()
        self.values.extend(values)


def read_table(path: Path) -> Table:
    """Read a CSV file by its header; lines of the wrong length are counted and left out.

    A column that was added to the schema after the file was written is there, all unknown.
    """
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return Table({})
    with file:
        lines = _whole_lines(file)
        header = next(lines, "").split(",")
        if header == [""]:
            return Table({})
        columns = [_Column(name) for name in header]
        cut = 0
        while some := list(islice(lines, _ROWS_AT_ONCE)):
            cut += _take(columns, some)
    read = {name: column.values for name, column in zip(header, columns, strict=True)}
    rows = len(columns[0].values)
    later = {
        name: [None] * rows for name in schema.COLUMNS.get(path.name, ()) if name not in header
    }
    return Table(read | later, cut_lines=cut)


def _whole_lines(file: TextIO) -> Iterator[str]:
    """Leave out what follows the last line end: a kill may have cut a number in two.

    No field is ever quoted, so a stray quotation mark is only a bad value in its own line.
    """
    for line in file:
        if line.endswith("\n"):
            yield line[:-1]


def _take(columns: list[_Column], lines: list[str]) -> int:
    """Add lines to the columns; return how many were left out."""
    try:
        read = _read(columns, lines)
    except ValueError:
        whole = [line for line in lines if _is_whole(columns, line)]
        if whole:
            _take(columns, whole)
        return len(lines) - len(whole)
    for column, values in zip(columns, read, strict=True):
        column.take(values)
    return 0


def _read(columns: list[_Column], lines: list[str]) -> list[Any]:
    count = len(columns)
    if any(line.count(",") != count - 1 for line in lines):
        raise ValueError("a line of another length")
    # One split for many lines: a list for each would be made only to be taken apart.
    fields = ",".join(lines).split(",")
    try:
        return [column.read(fields[at::count]) for at, column in enumerate(columns)]
    except OverflowError as error:
        raise ValueError("a whole number that no counter reaches") from error


def _is_whole(columns: list[_Column], line: str) -> bool:
    try:
        _read(columns, [line])
    except ValueError:
        return False
    return True
