"""The end of a run of several ranks: wait for them, merge their folders, return the outcome."""

from __future__ import annotations

import time
from pathlib import Path

from stepscope.records import run_reader, schema
from stepscope.records.run_folder import RunFolder
from stepscope.records.run_reader import rank_folders
from stepscope.records.types import RunRecord, TrainingResult
from stepscope.supervisor.child_supervisor import Outcome
from stepscope.supervisor.rank_tables import (
    EPOCH,
    STEP,
    RowSum,
    merge_records,
    merge_samples,
    merge_table,
)
from stepscope.supervisor.signals import StopSignals

_WAIT_FOR_OTHERS_S = 60.0
_WAIT_WHEN_FAILED_S = 15.0  # the launcher stops ranks that hang only when it knows of the failure
_WAIT_WHEN_STOPPED_S = 5.0  # the launcher does not wait for ever
KILLED = Outcome(schema.FAILED, "its supervising process was killed", 70)


def wait_for_others(run: Path, world_size: int, own: Outcome, signals: StopSignals) -> None:
    """Wait until all ranks have closed their folders, or have had time enough to."""
    stops = signals.stops
    wait_s = _WAIT_FOR_OTHERS_S if own.status == schema.COMPLETED else _WAIT_WHEN_FAILED_S
    if own.asked_to_stop:
        wait_s = _WAIT_WHEN_STOPPED_S
    until = time.monotonic() + wait_s
    while len(rank_folders(run, world_size)) < world_size or not _are_closed(run, world_size):
        if signals.stops > stops:
            stops, until = signals.stops, time.monotonic() + _WAIT_WHEN_STOPPED_S
        if time.monotonic() > until:
            return
        time.sleep(0.1)


def wait_for_rest(run: Path, world_size: int) -> None:
    """Wait until no rank is open: those of a launcher that was killed die a moment after it."""
    until = time.monotonic() + _WAIT_WHEN_STOPPED_S
    while not _are_closed(run, world_size) and time.monotonic() < until:
        time.sleep(0.1)


def _are_closed(run: Path, world_size: int) -> bool:
    return not any(
        run_reader.load_run(path).status == schema.RUNNING
        and RunFolder(path).is_held() is not False
        for path in rank_folders(run, world_size)
    )


def merge_ranks(top: RunFolder, world_size: int, outcome: Outcome = KILLED) -> list[run_reader.Run]:
    """Write the run's own tables from those of its ranks; return the ranks that took part last.

    Open folders that no process holds are closed with the outcome `outcome`.
    """
    for path in rank_folders(top.path, world_size):
        rank = RunFolder(path)
        # Not known to be held, on a file system without locks: it was waited for.
        if run_reader.load_run(path).status == schema.RUNNING and not rank.is_held():
            rank.close(
                status=outcome.status,
                reason=outcome.reason,
                exit_code=outcome.exit_code,
                process=None,
            )
    ranks = [run_reader.load_run(path) for path in rank_folders(top.path, world_size)]
    if ranks and ranks[0].path.name == "0":
        _merge_folders(top, ranks)
    return ranks


def _merge_folders(top: RunFolder, ranks: list[run_reader.Run]) -> None:
    first, events = ranks[0].path, ranks[0].events
    # Ranks that no longer take part count too: rows that they had not made were removed.
    every = rank_folders(top.path)
    unfinished = [rank.path for rank in ranks if rank.status != schema.COMPLETED]
    for file, key, combine in (
        (schema.STEPS, STEP, RowSum.in_step),
        (schema.EPOCHS, EPOCH, RowSum.in_epoch),
    ):
        of_ranks = [path / file for path in every]
        cut_short = [path / file for path in unfinished]
        merge_table(top.path / file, first / file, key, of_ranks, cut_short, combine)
    merge_records(top.path / schema.RECORDS, first / schema.RECORDS)
    resumed_s = [event["time_s"] for event in events if event["event"] == "resume"]
    for file in (schema.TELEMETRY, schema.ENERGY):
        merge_samples(top.path / file, first / file, resumed_s)
    known = run_reader.load_run(top.path).events  # of the run before it was resumed
    of_machine = (schema.ENERGY_EVENTS, schema.THROTTLING_EVENTS)
    for event in events:
        if event["event"].startswith(of_machine) and event not in known:
            detail = {
                name: value for name, value in event.items() if name not in ("event", "time_s")
            }
            top.add_event(event["event"], event["time_s"], **detail)


def failed_peer(run: Path, rank: int, world_size: int) -> str | None:
    """Return which other rank failed or disappeared; None if none did."""
    folders = {int(path.name): path for path in rank_folders(run, world_size)}
    for other in range(world_size):
        if other == rank:
            continue
        if other not in folders:
            return f"rank {other} ended before it created its folder"
        info = run_reader.load_run(folders[other]).info
        has_failed = info["status"] in (schema.FAILED, schema.OUT_OF_MEMORY)
        was_started = info["status"] == schema.RUNNING and info.get("process")
        if has_failed or (was_started and RunFolder(folders[other]).is_held() is False):
            return f"rank {other} failed"
    return None


def outcome_of(ranks: list[run_reader.Run], world_size: int) -> Outcome | None:
    """Return how a run of several ranks ended; None if none of them has a folder."""
    if not ranks:
        return None
    outcome = _outcome(ranks, world_size)
    first = ranks[0].info
    shares = [run.info["instrument"].get("beside_cpu_share") for run in ranks]
    known = [share for share in shares if share is not None]
    outcome.result = TrainingResult(
        instrument={**first["instrument"], "beside_cpu_share": sum(known) if known else None},
        layers=first["summary"].get("layers"),
        absent=absent_of(first),
    )
    return outcome


def _outcome(ranks: list[run_reader.Run], world_size: int) -> Outcome:
    unfinished = [run for run in ranks if run.status != schema.COMPLETED]
    if not unfinished and len(ranks) == world_size:
        return Outcome(schema.COMPLETED, ranks[0].info["reason"], 0)
    if not unfinished:
        return Outcome(
            schema.FAILED, f"wanted {world_size} ranks, found the folders of {len(ranks)}"
        )
    cause = min(unfinished, key=_distance_from_cause)
    reason = cause.info["reason"]
    alike = len(ranks) > 1 and all(run.info["reason"] == reason for run in ranks)
    if not alike and cause.status != schema.INTERRUPTED:
        reason = f"{cause.info['name']}: {reason}"
    code = cause.info.get("exit_code")
    return Outcome(cause.status, reason, 70 if code is None else code)


def absent_of(first: RunRecord) -> dict[str, str]:
    """Return why figures of the whole run are missing, from the reasons of rank 0."""
    absent = first["summary"].get("absent") or {}
    if first["kind"] == "trace":
        return absent
    return {**absent, **dict.fromkeys(("flops", "memory_bill"), "each rank has its own, in ranks/")}


def _distance_from_cause(run: run_reader.Run) -> int:
    """Order how ranks ended: of itself, on request, because another one had, unknown."""
    if run.status == schema.RUNNING:
        return 3
    lost_peer = False
    for event in run.events:
        lost_peer = event["event"] == schema.PEER_LOST or (lost_peer and event["event"] != "resume")
    if lost_peer:
        return 2
    return 1 if run.status == schema.INTERRUPTED else 0
