"""The run of several ranks, put together from their folders.

Its times are rank 0's, its samples those of all, its losses the mean over all samples. When a rank
fails, the launcher stops the others: the one that failed of itself is named, not those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepscope.experiments.merged import (
    EPOCH,
    STEP,
    Key,
    Made,
    Row,
    Sum,
    add_up,
    write_merged,
    write_records,
    write_samples,
)
from stepscope.experiments.supervise import Outcome, StopSignals
from stepscope.records import reader, schema
from stepscope.records.folder import RunFolder

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


def put_together(top: RunFolder, world: int, gone: Outcome = GONE) -> list[reader.Run]:
    """Write the run's own tables from those of its ranks; return the ranks that took part last.

    Folders that are open and that nobody holds any more are closed, as `gone` says.
    """
    for path in rank_folders(top.path, world):
        _close_if_gone(path, gone)
    ranks = [reader.load_run(path) for path in rank_folders(top.path, world)]
    if ranks and ranks[0].path.name == "0":
        _write_tables(top, ranks)
    return ranks


def failed_peer(run: Path, rank: int, world: int) -> str | None:
    """Say which other rank has failed, or is gone without a word; None where none has."""
    folders = {int(path.name): path for path in rank_folders(run, world)}
    for other in range(world):
        if other == rank:
            continue
        if other not in folders:
            return f"rank {other} ended before it had a folder"
        info = reader.load_run(folders[other]).info
        has_failed = info["status"] in (schema.FAILED, schema.OUT_OF_MEMORY)
        was_begun = info["status"] == schema.RUNNING and info.get("process")
        if has_failed or (was_begun and RunFolder(folders[other]).is_held() is False):
            return f"rank {other} failed"
    return None


def outcome_of(ranks: list[reader.Run], world: int) -> Outcome | None:
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
    reason = worst.info["reason"]
    alike = len(ranks) > 1 and all(run.info["reason"] == reason for run in ranks)
    if not alike and worst.status != schema.INTERRUPTED:
        reason = f"{worst.info['name']}: {reason}"
    code = worst.info.get("exit_code")
    return Outcome(worst.status, reason, 70 if code is None else code, **figures)


def absent_of(first: dict[str, Any]) -> dict[str, str]:
    """Return why figures of the whole are missing, by what rank 0 says of its own."""
    said: dict[str, str] = first["summary"].get("absent") or {}
    if first["kind"] == "trace":
        return said
    return {**said, **dict.fromkeys(("flops", "memory_bill"), "each rank has its own: ranks/0")}


def _how_telling(run: reader.Run) -> int:
    """Order how ranks ended: of itself, on request, because another one had, unknown."""
    if run.status == schema.RUNNING:
        return 3
    if _lost_its_peer(run):
        return 2
    return 1 if run.status == schema.INTERRUPTED else 0


def _lost_its_peer(run: reader.Run) -> bool:
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
    is_running = reader.load_run(path).status == schema.RUNNING
    return is_running and RunFolder(path).is_held() is not False


def _close_if_gone(path: Path, gone: Outcome) -> None:
    """Close a folder that nobody holds, or can be known to hold: it was waited for."""
    if reader.load_run(path).status == schema.RUNNING and not RunFolder(path).is_held():
        RunFolder(path).close(
            status=gone.status, reason=gone.reason, exit_code=gone.exit_code, process=None
        )


def _write_tables(top: RunFolder, ranks: list[reader.Run]) -> None:
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
    known = reader.load_run(top.path).events  # of the run before it was resumed
    for event in map(dict, events):
        of_machine = (schema.ENERGY_EVENTS, schema.THROTTLING_EVENTS)
        if str(event["event"]).startswith(of_machine) and event not in known:
            top.add_event(event.pop("event"), event.pop("time_s"), **event)


def _whole(
    run: Path,
    ranks: list[reader.Run],
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
