"""A CSV file of a record as columns: a million rows in seconds, at about ten bytes a number.

A table can also be had as a pandas or Polars data frame.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from stepscope.errors import MissingExtraError
from stepscope.records import schema
from stepscope.records.record_validation import MOST

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped, unused-ignore]
    import polars

_ROWS_AT_ONCE = 2_000  # split lines stay in the CPU's caches


class Numbers(array):  # type: ignore[type-arg]  # of Python 3.10
    """Numbers in eight bytes each, with the interface of a list."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self.tolist() == list(other)

    def __ne__(self, other: object) -> bool:
        return not self == other


@dataclass(frozen=True)
class Table:
    """Columns by name; `None` is unknown. A column that the file lacks is unknown throughout."""

    columns: dict[str, Sequence[Any]]
    cut_lines: int = 0
    computed: Mapping[str, Callable[[], Sequence[Any]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> Sequence[Any]:
        found = self.columns.get(name)
        return [None] * len(self) if found is None else found

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows as mappings from column to value."""
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))

    def all_columns(self) -> dict[str, Sequence[Any]]:
        """Return the columns of the file, followed by the computed ones."""
        return {**self.columns, **{name: compute() for name, compute in self.computed.items()}}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas frame. Unknown is `<NA>` in integer columns, NaN in float columns."""
        pandas = _import_for_frames("pandas")
        columns = {
            name: pandas.Series(values, dtype=_kind(name, "Int64", "string", "boolean", "float64"))
            for name, values in self.all_columns().items()
        }
        return pandas.DataFrame(columns)

    def to_polars(self) -> polars.DataFrame:
        """Return a Polars frame. Unknown is null; a NaN loss stays NaN."""
        library = _import_for_frames("polars")
        kinds = (library.Int64, library.String, library.Boolean, library.Float64)
        columns = self.all_columns().items()
        frame: polars.DataFrame = library.DataFrame(
            [library.Series(name, values, _kind(name, *kinds)) for name, values in columns]
        )
        return frame


def _import_for_frames(library: str) -> Any:
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"a frame of {library}", error.name or library, "frames") from error


def _kind(column: str, whole: Any, word: Any, yes_or_no: Any, number: Any) -> Any:
    """Return the type of a column by its name alone, so that an empty column has it too."""
    if column in schema.WHOLE_NUMBERS:
        return whole
    if column in schema.YES_OR_NO:
        return yes_or_no
    return word if column in schema.WORDS else number


class _Column:
    """A column being read: an array of numbers until a value is unknown."""

    def __init__(self, name: str, *, always_known: bool) -> None:
        self.name = name
        self._always_known = always_known
        self.values: Any
        self._to: Callable[[str], Any]
        if name in schema.WORDS:
            known: dict[str, str] = {}  # one object for each distinct word
            self.values, self._to = [], lambda text: known.setdefault(text, text)
        elif name in schema.WHOLE_NUMBERS:
            self._typecode, self._to = "q", int
        else:
            self._typecode, self._to = "d", float
        if name not in schema.WORDS:
            self.values = Numbers(self._typecode)

    def read(self, fields: Sequence[str]) -> Any:
        """Convert fields; raise ValueError if one is neither empty nor of the column's kind."""
        if self._always_known and "" in fields:
            raise ValueError(f"{self.name} is unknown")
        if self.name in schema.WORDS:
            return [self._to(field) if field else None for field in fields]
        known = Numbers(self._typecode, map(self._to, filter(None, fields)))
        if not math.hypot(*known) <= MOST and self.name not in schema.MAY_BE_INFINITE:
            raise ValueError(f"{self.name} is out of range")
        if len(known) == len(fields) and isinstance(self.values, Numbers):
            return known
        numbers = iter(known)
        return [next(numbers) if field else None for field in fields]

    def take(self, values: Any) -> None:
        """Append values."""
        if isinstance(self.values, Numbers) and not isinstance(values, Numbers):
            self.values = self.values.tolist()
        self.values.extend(values)


def read_table(path: Path) -> Table:
    """Read a CSV file by its header; lines of the wrong length are counted and left out."""
    return GrowingTable(path).read()


class GrowingTable:
    """A CSV file that is being written: every read parses only the rows added since the last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._header: list[str] = []
        self._columns: list[_Column] = []
        self._cut_lines = 0
        self._taken_bytes = 0
        self._last_line = b""

    def read(self) -> Table:
        """Return the table as it stands on disk now."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            self._forget()
            return Table({})
        with file:
            if not self._goes_on(file):
                self._forget()
            file.seek(self._taken_bytes)
            lines = _whole_lines(file)
            if not self._header:
                self._header = self._decode(list(islice(lines, 1)) or [b""])[0].split(",")
                known = schema.ALWAYS_KNOWN.get(self._path.name, ())
                self._columns = [_Column(name, always_known=name in known) for name in self._header]
            needed = {*schema.ALWAYS_KNOWN.get(self._path.name, ())}
            if self._path.name == schema.STEPS:
                needed |= {f"{phase}_s" for phase in schema.PHASES}
            lacks = needed - set(self._header)
            if self._header == [""]:
                self._forget()
                return Table({})
            while some := list(islice(lines, _ROWS_AT_ONCE)):
                read = self._decode(some)
                self._cut_lines += len(read) if lacks else _take(self._columns, read)
        values = (column.values for column in self._columns)
        return Table(dict(zip(self._header, values, strict=True)), cut_lines=self._cut_lines)

    def _goes_on(self, file: BinaryIO) -> bool:
        """Return whether the file is unchanged at the end of the last read."""
        file.seek(self._taken_bytes - len(self._last_line))
        return file.read(len(self._last_line)) == self._last_line

    def _decode(self, lines: list[bytes]) -> list[str]:
        text = b"".join(lines)
        self._taken_bytes += len(text)
        self._last_line = lines[-1]
        return text.decode(errors="replace").replace("\r\n", "\n").removesuffix("\n").split("\n")


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Return complete lines only: a kill may have cut a number in two."""
    for line in file:
        if line.endswith(b"\n"):
            yield line


def _take(columns: list[_Column], lines: list[str]) -> int:
    """Append lines to the columns; return the number of lines left out."""
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
    # One split for many lines saves a list for each.
    fields = ",".join(lines).split(",")
    try:
        read = [column.read(fields[at::count]) for at, column in enumerate(columns)]
    except OverflowError as error:
        raise ValueError("a whole number that no counter reaches") from error
    _check_phases({column.name: values for column, values in zip(columns, read, strict=True)})
    return read


def _check_phases(read: Mapping[str, Sequence[Any]]) -> None:
    """Raise ValueError if a step of full detail lacks a phase."""
    for phase in schema.PHASES:
        values = read.get(f"{phase}_s", ())
        if isinstance(values, list) and any(
            value is None and detail == schema.FULL
            for value, detail in zip(values, read.get("detail", ()), strict=False)
        ):
            raise ValueError(f"a full step without its {phase} time")


def _is_whole(columns: list[_Column], line: str) -> bool:
    try:
        _read(columns, [line])
    except ValueError:
        return False
    return True
