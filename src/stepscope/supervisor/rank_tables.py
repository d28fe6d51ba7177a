"""The tables of several ranks as those of one run: rank 0's times, samples and losses of all."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from stepscope.files import sync_and_move, write_atomically
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog, file_identity, last_rows, number, rows_of

Row = dict[str, str]
Key = tuple[str, ...]
Progress = tuple[float, ...]  # the epoch of a row and, for a step, its number
STEP = ("epoch", "step")
EPOCH = ("epoch", "split")
_Number = TypeVar("_Number", int, float)


@dataclass
class RowSum:
    """The sums of several ranks for one step, or for one epoch."""

    samples: int | None = 0  # None if one of them does not know its own
    samples_per_s: float | None = 0.0
    loss_sum: float = 0.0
    weight: int = 0

    def add(self, row: Row) -> None:
        """Add the row of one rank."""
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


def _plus(sum_so_far: _Number | None, value: _Number | None) -> _Number | None:
    return None if sum_so_far is None or value is None else sum_so_far + value


def merge_table(
    file: Path,
    first: Path,
    key: Sequence[str],
    ranks: Iterable[Path],
    unfinished: Iterable[Path],
    combine: Callable[[RowSum, Row], Row],
) -> None:
    """Write a table of the run: the rows of rank 0, `first`, combined with the sums of `ranks`.

    Rows that only the run has were made without rank 0, and stay. A row that an `unfinished` rank
    has not reached stays as the run has it.
    """
    rows = dict(_named(_read_rows(first), key))
    if not rows:
        return
    sums: defaultdict[Key, RowSum] = defaultdict(RowSum)
    for rank in ranks:
        for name, row in _named(_read_rows(rank), key):
            sums[name].add(row)
    reached = []
    for rank in unfinished:
        own = _read_rows(rank)
        last = max(map(_progress, own), default=())
        reached.append(({name for name, _ in _named(own, key)}, last))
    merged = dict(_named(_read_rows(file), key))
    for name, row in rows.items():
        # A rank that is past a row without having it took part only later.
        if all(name in names or last > _progress(row) for names, last in reached):
            merged[name] = combine(sums[name], row)
    in_order = sorted(
        merged.values(), key=lambda row: (*_progress(row), float(row["start_s"] or 0))
    )
    _write_rows(file, in_order, list(next(iter(rows.values()))))


def merge_records(file: Path, first: Path) -> None:
    """Add rank 0's records to those of the run, each once."""
    before, rows = _read_rows(file), _read_rows(first)
    if not rows:
        return
    columns = [*rows[0]]
    once = {_line_of(row, columns): row for row in (*before, *rows)}
    _write_rows(file, sorted(once.values(), key=lambda row: float(row["start"])), columns)


def merge_samples(file: Path, first: Path, resumed_s: Sequence[float]) -> None:
    """Write rank 0's telemetry, and the run's own from when rank 0 was not there.

    `resumed_s` are the times at which rank 0 was resumed.
    """
    rows = _read_rows(first)
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
        for row in _read_rows(file)
        if not any(begin <= float(row["time_s"]) <= end for begin, end in spans)
    ]
    _write_rows(file, sorted((*alone, *rows), key=lambda row: float(row["time_s"])), [*rows[0]])


def _named(rows: Iterable[Row], key: Sequence[str]) -> Iterator[tuple[Key, Row]]:
    """Yield each row with its name: its key, and how often that has occurred.

    A user's script may evaluate several times in an epoch.
    """
    times: Counter[Key] = Counter()
    for row in rows:
        name = tuple(row[column] for column in key)
        times[name] += 1
        yield (*name, str(times[name])), row


def _progress(row: Row) -> Progress:
    return (int(row["epoch"]), *([int(row["step"])] if "step" in row else []))


def _read_rows(file: Path) -> list[Row]:
    *lines, _ = file.read_text(encoding="utf-8", errors="replace").split("\n")
    return rows_of(lines[1:], lines[0].split(",")) if lines else []


def _line_of(row: Row, columns: Sequence[str]) -> str:
    return ",".join(row.get(column, "") for column in columns)


def _write_rows(file: Path, rows: Iterable[Row], columns: Sequence[str]) -> None:
    lines = [",".join(columns), *(_line_of(row, columns) for row in rows), ""]
    write_atomically(file, ["\n".join(lines).encode()], sync_and_move)


@dataclass
class GrowingTables:
    """The tables of a run of `world_size` processes, as far as all of them have come."""

    run: Path
    world_size: int
    _steps: list[_Tail] = field(default_factory=list)
    _of_first: deque[Row] = field(default_factory=deque)
    _sums: defaultdict[Progress, RowSum] = field(default_factory=lambda: defaultdict(RowSum))
    _epochs: list[tuple[int, int]] = field(default_factory=list)

    def update(self) -> None:
        """Write the rows that all ranks have finished since the last update."""
        ranks = [self.run / schema.RANKS / str(rank) for rank in range(self.world_size)]
        if all((rank / schema.RUN).is_file() for rank in ranks):
            self._grow_steps([rank / schema.STEPS for rank in ranks])
            self._grow_epochs([rank / schema.EPOCHS for rank in ranks])

    def _grow_steps(self, files: list[Path]) -> None:
        if not self._steps or any(tail.was_replaced() for tail in self._steps):
            self._steps = [_Tail(file) for file in files]
            self._of_first.clear()
            self._sums.clear()
        for rank, tail in enumerate(self._steps):
            for row in tail.new_rows():
                tail.last = _progress(row)
                self._sums[tail.last].add(row)
                if rank == 0:
                    self._of_first.append(row)
        made_by_all = min(tail.last for tail in self._steps)
        if not self._of_first or _progress(self._of_first[0]) > made_by_all:
            return
        columns, rows = last_rows(self.run / schema.STEPS)
        written = _progress(rows[-1]) if rows else (0, 0)
        with CsvLog(self.run / schema.STEPS) as log:
            while self._of_first and (step := _progress(self._of_first[0])) <= made_by_all:
                row = self._of_first.popleft()
                total = self._sums.pop(step)
                if step > written:
                    log.append(_line_of(total.in_step(row), columns))

    def _grow_epochs(self, files: list[Path]) -> None:
        """Write all epochs again when there are more of them: they are few."""
        now = [(status.st_ino, status.st_size) for status in map(os.stat, files)]
        if now != self._epochs:
            self._epochs = now
            whole = self.run / schema.EPOCHS
            merge_table(whole, files[0], EPOCH, files, files, RowSum.in_epoch)


@dataclass
class _Tail:
    """The rows that were added to a rank's steps since the file was last read."""

    file: Path
    last: Progress = (0, 0)
    _identity: tuple[int, int] | None = None
    _taken_bytes: int = 0
    _columns: list[str] = field(default_factory=list)

    def was_replaced(self) -> bool:
        """Return whether rows were removed from the file."""
        status = self.file.stat()
        is_same = self._identity in (None, (status.st_dev, status.st_ino))
        return not is_same or status.st_size < self._taken_bytes

    def new_rows(self) -> list[Row]:
        """Return the complete rows that follow those returned before."""
        with self.file.open("rb") as file:
            self._identity = file_identity(file.fileno())
            file.seek(self._taken_bytes)
            whole, line_end, _ = file.read().rpartition(b"\n")
        self._taken_bytes += len(whole) + len(line_end)
        lines = whole.decode(errors="replace").split("\n") if line_end else []
        if not self._columns and lines:
            self._columns = lines.pop(0).split(",")
        return rows_of(lines, self._columns)
