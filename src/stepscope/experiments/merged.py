"""The tables of several ranks as those of one run: rank 0's times, samples and losses of all."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stepscope.errors import DISK_FULL_ERRNOS, disk_full
from stepscope.records.csvlog import number

Row = dict[str, str]
Key = tuple[str, ...]
STEP = ("epoch", "step")
EPOCH = ("epoch", "split")
Place = tuple[float, ...]
_Number = TypeVar("_Number", int, float)


@dataclass
class Sum:
    """What several ranks say of one step, or of one epoch."""

    samples: int | None = 0  # None where one of them does not know its own
    samples_per_s: float | None = 0.0
    loss_sum: float = 0.0
    weight: int = 0

    def add(self, row: Row) -> None:
        """Take what one of them says."""
        samples = int(row["samples"]) if row["samples"] else None
        self.samples = _plus(self.samples, samples)
        rate = row.get("samples_per_s")
        self.samples_per_s = _plus(self.samples_per_s, float(rate) if rate else None)
        if row["loss"]:
            weight = 1 if samples is None else samples
            self.loss_sum += float(row["loss"]) * weight
            self.weight += weight

    def in_step(self, row: Row) -> Row:
        """Return the run's step from rank 0's: the loss is the mean over all samples."""
        loss = repr(self.loss_sum / self.weight) if self.weight else ""
        return {**row, "samples": number(self.samples), "loss": loss}

    def in_epoch(self, row: Row) -> Row:
        """Return the run's epoch from rank 0's, whose loss and accuracy are over all already."""
        total_s = float(row["total_s"] or 0)
        rate = self.samples_per_s  # each on its own clock
        if self.samples is not None:
            rate = self.samples / total_s if total_s else None
        return {**row, "samples": number(self.samples), "samples_per_s": number(rate)}


@dataclass(frozen=True)
class Made:
    """What one rank has made: the names of its rows, and how far it has come."""

    names: frozenset[Key]
    last: Place

    @staticmethod
    def of(file: Path, key: Sequence[str]) -> Made:
        """Read it from a table of the rank."""
        rows = read_rows(file)
        names = frozenset(name for name, _ in named(rows, key))
        return Made(names, max((_progress(row) for row in rows), default=()))

    def misses(self, name: Key, row: Row) -> bool:
        """Say whether it has not come as far as a row; one that it is past was before its time."""
        return name not in self.names and self.last <= _progress(row)


def _plus(sum_so_far: _Number | None, value: _Number | None) -> _Number | None:
    return None if sum_so_far is None or value is None else sum_so_far + value


def add_up(files: Iterable[Path], key: Sequence[str]) -> defaultdict[Key, Sum]:
    """Add up what the tables of all ranks say, row by row."""
    sums: defaultdict[Key, Sum] = defaultdict(Sum)
    for file in files:
        for name, row in named(read_rows(file), key):
            sums[name].add(row)
    return sums


def named(rows: Iterable[Row], key: Sequence[str]) -> Iterator[tuple[Key, Row]]:
    """Yield each row with what tells it from the others: its key, and how often that came.

    A foreign script may be tested several times in an epoch.
    """
    times: Counter[Key] = Counter()
    for row in rows:
        name = tuple(row[column] for column in key)
        times[name] += 1
        yield (*name, str(times[name])), row


def read_rows(file: Path) -> list[Row]:
    """Read the whole rows of a table, as text."""
    *lines, _ = file.read_text(encoding="utf-8", errors="replace").split("\n")
    return rows_of(lines[1:], lines[0].split(",")) if lines else []


def rows_of(lines: Iterable[str], columns: Sequence[str]) -> list[Row]:
    """Read lines as rows; those that a kill cut short are left out."""
    split = (line.split(",") for line in lines)
    return [dict(zip(columns, row, strict=True)) for row in split if len(row) == len(columns)]


def line_of(row: Row, columns: Sequence[str]) -> str:
    """Write a row as a line; a column that came later than the row is unknown."""
    return ",".join(row.get(column, "") for column in columns)


def write_merged(
    file: Path, first: Path, key: Sequence[str], of_all: Callable[[Key, Row], Row | None]
) -> None:
    """Write a table of the run from rank 0's; rows that only the run has were made without it.

    What `of_all` makes None of stays as the run has it. Where rank 0 has no rows, all stays.
    """
    rows = dict(named(read_rows(first), key))
    if not rows:
        return
    merged = dict(named(read_rows(file), key))
    for name, row in rows.items():
        if (whole := of_all(name, row)) is not None:
            merged[name] = whole
    _write_rows(file, sorted(merged.values(), key=_order), list(next(iter(rows.values()))))


def write_records(file: Path, first: Path) -> None:
    """Add to the run's records those of rank 0 that it has not."""
    before, rows = read_rows(file), read_rows(first)
    if not rows:
        return
    columns = [*rows[0]]
    known = {line_of(row, columns) for row in before}
    added = [row for row in rows if line_of(row, columns) not in known]
    _write_rows(file, sorted((*before, *added), key=lambda row: float(row["start"])), columns)


def write_samples(file: Path, first: Path, resumed_s: Sequence[float]) -> None:
    """Write what was sampled from rank 0's; the run's own rows are of when rank 0 was not there.

    `resumed_s` is when rank 0 went on after an end.
    """
    rows = read_rows(first)
    if not rows:
        return
    begins = sorted(resumed_s)
    lives: defaultdict[int, list[float]] = defaultdict(list)
    for row in rows:
        time_s = float(row["time_s"])
        lives[bisect_right(begins, time_s)].append(time_s)
    spans = [(min(times_s), max(times_s)) for times_s in lives.values()]
    alone = [
        row
        for row in read_rows(file)
        if not any(begin <= float(row["time_s"]) <= end for begin, end in spans)
    ]
    _write_rows(file, sorted((*alone, *rows), key=lambda row: float(row["time_s"])), [*rows[0]])


def _write_rows(file: Path, rows: Iterable[Row], columns: Sequence[str]) -> None:
    lines = [line_of(row, columns) for row in rows]
    replace_whole(file, "\n".join([",".join(columns), *lines, ""]))


def _progress(row: Row) -> Place:
    """Return how far a row is: its epoch, and where it is a step's, that."""
    return (int(row["epoch"]), *([int(row["step"])] if "step" in row else []))


def _order(row: Row) -> Place:
    """Return where a row stands in its table: a test is after the epoch that it is of."""
    return (*_progress(row), float(row["start_s"] or 0))


def replace_whole(file: Path, text: str) -> None:
    """Write a file in one move, so that a kill leaves the old one or the new one.

    Raises:
        MachineError: the disk is full.
    """
    beside = file.with_suffix(".new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise disk_full(error, str(file)) from error
        raise
