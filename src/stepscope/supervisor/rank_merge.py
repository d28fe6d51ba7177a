"""The tables of several ranks as those of one run: rank 0's times, samples and losses of all."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stepscope.errors import DISK_FULL_ERRNOS, disk_full
from stepscope.records import run_reader, schema
from stepscope.records.csv_log import CsvLog, file_identity, number
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import RunRecord
from stepscope.supervisor.child_supervisor import Outcome, StopSignals

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


# --- At the end of a run


_WAIT_FOR_OTHERS_S = 60.0
_WAIT_WHEN_FAILED_S = 15.0  # the launcher stops those that hang when it hears of it, not before
_WAIT_WHEN_STOPPED_S = 5.0  # the launcher does not wait for ever
GONE = Outcome(schema.FAILED, "the process that supervised it ended without a word", 70)


def rank_folders(run: Path, world: int | None = None) -> list[Path]:
    """List the folders of a run's ranks, in their order; of a `world` those that are in it."""
    found = (each for each in (run / schema.RANKS).glob("*") if each.name.isdecimal())
    ranks = {int(each.name): each for each in found if (each / schema.RUN).is_file()}
    return [ranks[rank] for rank in sorted(ranks) if world is None or rank < world]


def wait_for_others(run: Path, world: int, mine: Outcome, signals: StopSignals) -> None:
    """Wait until all ranks have closed their folders, or have had time enough to."""
    stops = signals.stops

    def are_all_closed() -> bool:
        return len(rank_folders(run, world)) == world and _are_closed(run, world)

    wait_s = _WAIT_FOR_OTHERS_S if mine.status == schema.COMPLETED else _WAIT_WHEN_FAILED_S
    if mine.asked_to_stop:
        wait_s = _WAIT_WHEN_STOPPED_S
    _wait(lambda: are_all_closed() or signals.stops > stops, wait_s)
    _wait(are_all_closed, _WAIT_WHEN_STOPPED_S if signals.stops > stops else 0.0)


def wait_for_rest(run: Path, world: int) -> None:
    """Wait until no rank is open: those of a launcher that was killed die a moment after it."""
    _wait(lambda: _are_closed(run, world), _WAIT_WHEN_STOPPED_S)


def put_together(top: RunFolder, world: int, gone: Outcome = GONE) -> list[run_reader.Run]:
    """Write the run's own tables from those of its ranks; return the ranks that took part last.

    Folders that are open and that nobody holds any more are closed, as `gone` says.
    """
    for path in rank_folders(top.path, world):
        _close_if_gone(path, gone)
    ranks = [run_reader.load_run(path) for path in rank_folders(top.path, world)]
    if ranks and ranks[0].path.name == "0":
        _write_tables(top, ranks)
    return ranks


def failed_peer(run: Path, rank: int, world: int) -> str | None:
    """Return which other rank failed or disappeared; None if none did."""
    folders = {int(path.name): path for path in rank_folders(run, world)}
    for other in range(world):
        if other == rank:
            continue
        if other not in folders:
            return f"rank {other} ended before it had a folder"
        info = run_reader.load_run(folders[other]).info
        has_failed = info["status"] in (schema.FAILED, schema.OUT_OF_MEMORY)
        was_begun = info["status"] == schema.RUNNING and info.get("process")
        if has_failed or (was_begun and RunFolder(folders[other]).is_held() is False):
            return f"rank {other} failed"
    return None


def outcome_of(ranks: list[run_reader.Run], world: int) -> Outcome | None:
    """Say how a run of several ranks ended; None when none of them has a folder."""
    if not ranks:
        return None
    first = ranks[0].info
    shares = [run.info["instrument"].get("beside_cpu_share") for run in ranks]
    known = [share for share in shares if share is not None]
    figures: dict[str, Any] = {
        "instrument": {
            **first["instrument"],
            "beside_cpu_share": sum(known) if known else None,
        },
        "layers": first["summary"].get("layers"),
        "absent": absent_of(first),
        "preparation_s": first["summary"].get("preparation_s"),
    }
    ended_badly = [run for run in ranks if run.status != schema.COMPLETED]
    if not ended_badly:
        if len(ranks) == world:
            return Outcome(schema.COMPLETED, first["reason"], 0, **figures)
        reason = f"{world} ranks were wanted, {len(ranks)} left a folder"
        return Outcome(schema.FAILED, reason, **figures)
    worst = min(ended_badly, key=_how_telling)
    said = worst.info["reason"]
    alike = len(ranks) > 1 and all(run.info["reason"] == said for run in ranks)
    if not alike and worst.status != schema.INTERRUPTED:
        said = f"{worst.info['name']}: {said}"
    code = worst.info.get("exit_code")
    return Outcome(worst.status, said, 70 if code is None else code, **figures)


def absent_of(first: RunRecord) -> dict[str, str]:
    """Return why figures of the whole run are missing, from the reasons of rank 0."""
    said = first["summary"].get("absent") or {}
    if first["kind"] == "trace":
        return said
    return {**said, **dict.fromkeys(("flops", "memory_bill"), "each rank has its own: ranks/0")}


def _how_telling(run: run_reader.Run) -> int:
    """Order how ranks ended: of itself, on request, because another one had, unknown."""
    if run.status == schema.RUNNING:
        return 3
    if _lost_its_peer(run):
        return 2
    return 1 if run.status == schema.INTERRUPTED else 0


def _lost_its_peer(run: run_reader.Run) -> bool:
    lately = False
    for event in run.events:
        if event["event"] == "resume":
            lately = False
        lately = lately or event["event"] == schema.PEER_LOST
    return lately


def _wait(happened: Callable[[], bool], wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while not happened() and time.monotonic() < until:
        time.sleep(0.1)


def _are_closed(run: Path, world: int) -> bool:
    return not any(map(_is_open, rank_folders(run, world)))


def _is_open(path: Path) -> bool:
    is_running = run_reader.load_run(path).status == schema.RUNNING
    return is_running and RunFolder(path).is_held() is not False


def _close_if_gone(path: Path, gone: Outcome) -> None:
    """Close a folder that nobody holds, or can be known to hold: it was waited for."""
    if run_reader.load_run(path).status == schema.RUNNING and not RunFolder(path).is_held():
        RunFolder(path).close(
            status=gone.status, reason=gone.reason, exit_code=gone.exit_code, process=None
        )


def _write_tables(top: RunFolder, ranks: list[run_reader.Run]) -> None:
    first = ranks[0].path
    for file, key, of_all in (
        (schema.STEPS, STEP, Sum.in_step),
        (schema.EPOCHS, EPOCH, Sum.in_epoch),
    ):
        write_merged(top.path / file, first / file, key, _whole(top.path, ranks, file, key, of_all))
    write_records(top.path / schema.RECORDS, first / schema.RECORDS)
    events = ranks[0].events
    resumed_s = [float(event["time_s"]) for event in events if event["event"] == "resume"]
    for file in (schema.TELEMETRY, schema.ENERGY):
        write_samples(top.path / file, first / file, resumed_s)
    known = run_reader.load_run(top.path).events  # of the run before it was resumed
    of_machine = (schema.ENERGY_EVENTS, schema.THROTTLING_EVENTS)
    for event in events:
        if event["event"].startswith(of_machine) and event not in known:
            detail = {
                name: value for name, value in event.items() if name not in ("event", "time_s")
            }
            top.add_event(event["event"], event["time_s"], **detail)


def _whole(
    run: Path,
    ranks: list[run_reader.Run],
    file: str,
    key: Sequence[str],
    of_all: Callable[[Sum, Row], Row],
) -> Callable[[Key, Row], Row | None]:
    """Return what makes of rank 0's row that of all; None where one ended before it had made it.

    Ranks of earlier, which are no more, count too: rows that they had not made were taken back.
    """
    sums = add_up((path / file for path in rank_folders(run)), key)
    cut_short = [
        Made.of(rank.path / file, key) for rank in ranks if rank.status != schema.COMPLETED
    ]

    def whole(name: Key, row: Row) -> Row | None:
        is_missed = any(rank.misses(name, row) for rank in cut_short)
        return None if is_missed else of_all(sums[name], row)

    return whole


# --- While the ranks train


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
