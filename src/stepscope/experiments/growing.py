"""The run's own tables while its ranks train, looked after by a parent with each sample.

A step is there as soon as every rank has made it. What is in the run's tables already is read from
them, not remembered: a rank that goes back to a checkpoint takes rows out of its own tables, and
rank 0 out of the run's. When the ranks have ended, `experiments.together` writes all of it anew.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.experiments.merged import (
    EPOCH,
    Key,
    Made,
    Row,
    Sum,
    add_up,
    line_of,
    rows_of,
    write_merged,
)
from stepscope.records import schema
from stepscope.records.csvlog import CsvLog, file_identity

_LAST_BYTES = 8192  # more than a row has


@dataclass
class GrowingTables:
    """The tables of a run of so many processes, as far as all of them have got."""

    run: Path
    world: int
    _steps: list[_Tail] = field(default_factory=list)
    _of_first: deque[Row] = field(default_factory=deque)
    _sums: defaultdict[tuple[int, int], Sum] = field(default_factory=lambda: defaultdict(Sum))
    _epochs: list[tuple[int, int]] = field(default_factory=list)

    def look(self) -> None:
        """Write what has come since the last look."""
        ranks = [self.run / schema.RANKS / str(rank) for rank in range(self.world)]
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
                tail.last = _place(row)
                self._sums[tail.last].add(row)
                if rank == 0:
                    self._of_first.append(row)
        made_by_all = min(tail.last for tail in self._steps)
        if not self._of_first or _place(self._of_first[0]) > made_by_all:
            return
        columns, written = _end_of(self.run / schema.STEPS)
        with CsvLog(self.run / schema.STEPS) as log:
            while self._of_first and (place := _place(self._of_first[0])) <= made_by_all:
                row = self._of_first.popleft()
                total = self._sums.pop(place)
                if place > written:
                    log.append(line_of(total.in_step(row), columns))

    def _grow_epochs(self, files: list[Path]) -> None:
        """Write all epochs again when there are more of them: they are few."""
        now = [(status.st_ino, status.st_size) for status in map(os.stat, files)]
        if now == self._epochs:
            return
        self._epochs = now
        sums, ranks = add_up(files, EPOCH), [Made.of(file, EPOCH) for file in files]

        def of_all(name: Key, row: Row) -> Row | None:
            is_missed = any(rank.misses(name, row) for rank in ranks)
            return None if is_missed else sums[name].in_epoch(row)

        write_merged(self.run / schema.EPOCHS, files[0], EPOCH, of_all)


@dataclass
class _Tail:
    """A rank's steps: what was added to the file since it was last read."""

    file: Path
    last: tuple[int, int] = (0, 0)
    _identity: tuple[int, int] | None = None
    _taken_bytes: int = 0
    _columns: list[str] = field(default_factory=list)

    def was_replaced(self) -> bool:
        """Say whether rows were taken out of the file."""
        status = self.file.stat()
        is_same = self._identity in (None, (status.st_dev, status.st_ino))
        return not is_same or status.st_size < self._taken_bytes

    def new_rows(self) -> list[Row]:
        """Return the whole rows that follow those returned before."""
        with self.file.open("rb") as file:
            self._identity = file_identity(file.fileno())
            file.seek(self._taken_bytes)
            whole, line_end, _ = file.read().rpartition(b"\n")
        self._taken_bytes += len(whole) + len(line_end)
        lines = whole.decode(errors="replace").split("\n") if line_end else []
        if not self._columns and lines:
            self._columns = lines.pop(0).split(",")
        return rows_of(lines, self._columns)


def _end_of(file: Path) -> tuple[list[str], tuple[int, int]]:
    """Return the columns of a table of steps, and which step is its last: (0, 0) for none."""
    with file.open("rb") as table:
        columns = table.readline().decode().rstrip("\n").split(",")
        begin = table.tell()
        size = table.seek(0, os.SEEK_END)
        table.seek(max(begin, size - _LAST_BYTES))
        *lines, _ = table.read().decode(errors="replace").split("\n")
    rows = rows_of(lines, columns)
    return columns, _place(rows[-1]) if rows else (0, 0)


def _place(row: Row) -> tuple[int, int]:
    return int(row["epoch"]), int(row["step"])
