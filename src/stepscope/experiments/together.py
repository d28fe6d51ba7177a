"""The run of several ranks, put together from their folders.

Its times are rank 0's, its samples those of all, its losses the mean over all samples. When a rank
fails, the launcher stops the others: the one that failed of itself is named, not those.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from stepscope.errors import RequestError
from stepscope.experiments.merged import (
    EPOCH,
    STEP,
    add_up,
    read_rows,
    replace_whole,
    write_merged,
)
from stepscope.experiments.supervise import Outcome
from stepscope.records import reader, schema
from stepscope.records.folder import RunFolder

_WAIT_FOR_OTHERS_S = 60.0
_WAIT_WHEN_STOPPED_S = 5.0  # the launcher does not wait for ever
_GONE = "the process that supervised it ended without a word"


def rank_folders(run: Path) -> list[Path]:
    """List the folders of a run's ranks, in their order."""
    found = (each for each in (run / schema.RANKS).glob("*") if each.name.isdecimal())
    return sorted(
        (each for each in found if (each / schema.RUN).is_file()), key=lambda each: int(each.name)
    )


def wait_for_others(run: Path, world: int, *, stopped: bool) -> None:
    """Wait until all ranks have closed their folders, or have had time enough to."""
    wait_s = _WAIT_WHEN_STOPPED_S if stopped else _WAIT_FOR_OTHERS_S
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        known = rank_folders(run)[:world]
        if len(known) == world and not any(map(_is_open, known)):
            return
        time.sleep(0.1)


def put_together(top: RunFolder, world: int) -> list[reader.Run]:
    """Write the run's own tables from those of its ranks; return the ranks that took part last."""
    folders = rank_folders(top.path)
    for path in folders[:world]:
        _close_if_gone(path)
    runs = [reader.load_run(path) for path in folders]
    if runs and runs[0].path.name == "0":
        _write_tables(top, runs)
    return runs[:world]


def failed_peer(run: Path, rank: int) -> reader.Run | None:
    """Return another rank that has failed, or whose supervising process is gone."""
    for path in rank_folders(run):
        if path.name == str(rank):
            continue
        other = reader.load_run(path)
        if other.status in (schema.FAILED, schema.OUT_OF_MEMORY):
            return other
        if other.status == schema.RUNNING and other.info.get("process") and not _is_held(path):
            return other
    return None


def outcome_of(ranks: list[reader.Run], world: int) -> Outcome | None:
    """Say how a run of several ranks ended; None when none of them has a folder."""
    if not ranks:
        return None
    first = ranks[0].info
    figures: dict[str, Any] = {
        "instrument": first["instrument"],
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
    return Outcome(worst.status, reason, worst.info.get("exit_code", 70), **figures)


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


def _is_open(path: Path) -> bool:
    return reader.load_run(path).status == schema.RUNNING and _is_held(path)


def _is_held(path: Path) -> bool:
    try:
        with RunFolder(path).held():
            return False
    except RequestError:
        return True


def _close_if_gone(path: Path) -> None:
    if reader.load_run(path).status == schema.RUNNING and not _is_held(path):
        RunFolder(path).close(status=schema.FAILED, reason=_GONE, process=None)


def _write_tables(top: RunFolder, runs: list[reader.Run]) -> None:
    first = runs[0].path
    steps = add_up((run.path / schema.STEPS for run in runs), STEP)
    epochs = add_up((run.path / schema.EPOCHS for run in runs), EPOCH)
    for file, key, of_all in (
        (schema.STEPS, STEP, lambda name, row: steps[name].in_step(row)),
        (schema.EPOCHS, EPOCH, lambda name, row: epochs[name].in_epoch(row)),
    ):
        write_merged(top.path / file, first / file, key, of_all)
    for file in (schema.RECORDS, schema.TELEMETRY, schema.ENERGY):
        if read_rows(first / file):
            replace_whole(top.path / file, (first / file).read_text(encoding="utf-8"))
    known = reader.load_run(top.path).events  # of the run before it was resumed
    for event in reader.load_run(first).events:
        of_machine = (schema.ENERGY_EVENTS, schema.THROTTLING_EVENTS)
        if str(event["event"]).startswith(of_machine) and event not in known:
            top.add_event(event.pop("event"), event.pop("time_s"), **event)
