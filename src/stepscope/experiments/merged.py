"""The tables of several ranks as those of one run: rank 0's times, samples and losses of all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import DISK_FULL_ERRNOS, disk_full
from stepscope.records.csvlog import number

Row = dict[str, str]
Key = tuple[str, ...]
STEP = ("epoch", "step")
EPOCH = ("epoch", "split")


@dataclass
class Sum:
    """What several ranks say of one step, or of one epoch."""

    samples: int = 0
    loss_sum: float = 0.0
    of_samples: int = 0

    def add(self, row: Row) -> None:
        """Take what one of them says."""
        samples = int(row["samples"] or 0)
        self.samples += samples
        if row["loss"]:
            self.loss_sum += float(row["loss"]) * samples
            self.of_samples += samples

    def in_step(self, row: Row) -> Row:
        """Return the run's step from rank 0's: the loss is the mean over all samples."""
        loss = repr(self.loss_sum / self.of_samples) if self.of_samples else ""
        return {**row, "samples": str(self.samples), "loss": loss}

    def in_epoch(self, row: Row) -> Row:
        """Return the run's epoch from rank 0's, whose loss and accuracy are over all already."""
        total_s = float(row["total_s"] or 0)
        rate = number(self.samples / total_s) if total_s else ""
        return {**row, "samples": str(self.samples), "samples_per_s": rate}


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
    """Write a table of the run from rank 0's; rows that only the run has are from before it.

    What `of_all` makes None of is left out. Nothing is written where rank 0 has no rows.
    """
    rows = dict(named(read_rows(first), key))
    if not rows:
        return
    begin = next(iter(rows.values()))
    before = [
        row
        for name, row in named(read_rows(file), key)
        if name not in rows and int(row["epoch"]) <= int(begin["epoch"])
    ]
    merged = (of_all(name, row) for name, row in rows.items())
    columns = list(begin)
    lines = [line_of(row, columns) for row in (*before, *merged) if row is not None]
    replace_whole(file, "\n".join([",".join(columns), *lines, ""]))


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
