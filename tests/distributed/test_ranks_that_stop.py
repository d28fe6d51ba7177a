"""How ranks are taken up, told to stop and judged, without a training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stepscope.errors import RequestError
from stepscope.hardware.process import RankInfo
from stepscope.processes.training_process import ProcessOptions
from stepscope.records import run_folder, schema
from stepscope.records.run_reader import load_run
from stepscope.settings import RunSpec
from stepscope.supervisor import rank_processes, start_run, torchrun
from stepscope.supervisor.child_supervisor import ChildWatch, Outcome
from stepscope.supervisor.rank_processes import (
    Rank,
    RankListener,
    RankProcesses,
    RankTraining,
    run_rank,
)
from stepscope.supervisor.signals import StopSignals, stop_signals

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); input()"


@pytest.fixture
def run(tmp_path: Path) -> run_folder.RunFolder:
    made = run_folder.create(tmp_path, "two", "run", RunSpec().model_dump(mode="json"))
    made.update_info(status=schema.INTERRUPTED)
    return made


@pytest.fixture
def deaf() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that hears no SIGTERM, as a training that waits for others to come."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", DEAF], **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        yield process
        process.kill()


def rank_of(run: run_folder.RunFolder, number: int = 0) -> Rank:
    return Rank(RankInfo(number, 2, "m"), run.path, RunSpec(processes=2), ProcessOptions())


def training_of(run: run_folder.RunFolder, made: run_folder.RunFolder) -> RankTraining:
    return RankTraining(rank=rank_of(run), folder=made)


def outcome_of_ranks(run: run_folder.RunFolder, watch: ChildWatch, returncode: int) -> Outcome:
    ranks = RankProcesses(folder=run, spec=RunSpec(processes=2), options=ProcessOptions())
    return ranks.outcome(watch, returncode)


def watch_of(made: run_folder.RunFolder, stops: int = 0, **known: Any) -> ChildWatch:
    """Return what a judge looks at."""
    memory = SimpleNamespace(
        stop_requested=False, killed=False, what_happened=lambda: "memory ran short"
    )
    seen = {
        "memory": memory,
        "outcome": None,
        "recording_error": None,
        "forecast": None,
        "ready": None,
        "stopped_because": None,
    }
    seen |= {"folder": made, "signals": StopSignals(stops=stops), **known}
    return cast(ChildWatch, SimpleNamespace(**seen, sampler=SimpleNamespace(origin_ns=0)))


def test_who_is_refused_changes_nothing_of_the_run_that_is_going(
    run: run_folder.RunFolder,
) -> None:
    going = run_folder.create_rank(run.path, 0, "run", RunSpec().model_dump(mode="json"))
    with run.held(), pytest.raises(RequestError, match="still running"):
        start_run.resume(run.path, RankListener(0, None), processes=2)
    with going.held(), pytest.raises(RequestError, match="still running"):
        run_rank(rank_of(run), RankListener(0, None))
    for folder in (run, going):
        assert folder.read_info()["spec"]["processes"] == 1


def test_a_rank_that_is_not_ready_and_deaf_is_ended(
    run: run_folder.RunFolder, deaf: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_processes, "_TIME_TO_NOTICE_S", 0.01)
    made = run_folder.create_rank(run.path, 0, "run", {})
    run_folder.create_rank(run.path, 1, "run", {})  # whose training has not begun either
    training_of(run, made).stop(deaf, signal.SIGTERM, 0)
    assert deaf.wait(timeout=30) == -signal.SIGKILL


def test_a_rank_that_trains_with_its_peer_is_given_all_the_time_it_needs(
    run: run_folder.RunFolder, deaf: subprocess.Popen[bytes]
) -> None:
    made = run_folder.create_rank(run.path, 0, "run", {})
    run_folder.create_rank(run.path, 1, "run", {})
    made.update_info(environment={"distributed": {"rank": 0}})
    before = threading.active_count()
    training_of(run, made).stop(deaf, signal.SIGTERM, 0)
    assert threading.active_count() == before, "nothing is waiting to end it"


def test_a_rank_that_was_stopped_for_one_without_a_folder_has_failed(
    run: run_folder.RunFolder,
) -> None:
    made = run_folder.create_rank(run.path, 0, "run", {})
    outcome = training_of(run, made).outcome(watch_of(made, stops=1), -signal.SIGKILL)
    assert (outcome.status, outcome.exit_code) == (schema.FAILED, 5)
    assert "rank 1 ended before it created its folder" in str(outcome.reason)
    assert made.read_info()["exit_code"] == 5, "before the folder is closed"
    assert [event["event"] for event in load_run(made.path).events] == [schema.PEER_LOST]


def ranks_that_ended(run: run_folder.RunFolder, status: str) -> None:
    for number in (0, 1):
        made = run_folder.create_rank(run.path, number, "run", {})
        if status != schema.RUNNING:
            made.close(status=status, reason="stopped", exit_code=130)


@pytest.mark.parametrize(
    ("asked", "stops", "ready", "ended", "says_checkpoint"),
    [
        (True, 0, True, (schema.OUT_OF_MEMORY, 4), True),
        (True, 0, False, (schema.OUT_OF_MEMORY, 4), False),
        (True, 1, True, (schema.INTERRUPTED, 130), False),
        (False, 1, True, (schema.INTERRUPTED, 130), False),
    ],
)
def test_ranks_that_were_stopped_for_memory_ran_out_of_it(
    run: run_folder.RunFolder,
    asked: bool,
    stops: int,
    ready: bool,
    ended: tuple[str, int],
    says_checkpoint: bool,
) -> None:
    ranks_that_ended(run, schema.INTERRUPTED)
    watch = watch_of(run, stops, ready={"preparation_s": 1.0} if ready else None)
    watch.memory.stop_requested = asked  # type: ignore[misc]
    outcome = outcome_of_ranks(run, watch, 130)
    assert (outcome.status, outcome.exit_code) == ended
    assert ("with a checkpoint" in str(outcome.reason)) == says_checkpoint


@pytest.mark.parametrize(
    ("stops", "ended"), [(2, (schema.INTERRUPTED, 130)), (0, (schema.FAILED, 70))]
)
def test_what_a_second_ctrl_c_cut_off_was_interrupted(
    run: run_folder.RunFolder, stops: int, ended: tuple[str, int]
) -> None:
    ranks_that_ended(run, schema.RUNNING)
    outcome = outcome_of_ranks(run, watch_of(run, stops), -signal.SIGKILL)
    assert (outcome.status, outcome.exit_code) == ended
    for number in (0, 1):
        info = load_run(run.path / schema.RANKS / str(number)).info
        assert (info["status"], info["exit_code"]) == ended


def test_a_word_to_stop_while_rank_0_closes_the_run_leaves_the_reason_as_it_is(
    run: run_folder.RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(rank: Rank, *others: object) -> tuple[Path, Outcome]:
        ranks_that_ended(run, schema.FAILED)
        os.kill(os.getpid(), signal.SIGTERM)  # the launcher, since rank 1 has failed
        return run.path / schema.RANKS / "0", Outcome(schema.FAILED, "stopped", 2)

    monkeypatch.setattr(torchrun, "run_rank", fail)
    rank, spec = RankInfo(0, 2, "m"), RunSpec(processes=2)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as in cli.main
    try:
        _, ended = torchrun.train_rank(rank, run.path, spec, RankListener(0, None))
    finally:
        signal.signal(signal.SIGTERM, before)
    closed = run.read_info()
    assert (closed["status"], closed["reason"]) == (ended.status, "stopped")


def test_a_run_stopped_for_a_failed_peer_is_found_again_after_the_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(rank: Rank, *others: object) -> tuple[Path, Outcome]:
        ranks_that_ended(run_folder.RunFolder(rank.run), schema.FAILED)
        return rank.run / schema.RANKS / "0", Outcome(schema.FAILED, asked_to_stop=True)

    monkeypatch.setattr(torchrun, "run_rank", fail)
    info, spec = RankInfo(0, 2, "m", restarts=0, max_restarts=1), RunSpec(out=str(tmp_path))
    run, _ = torchrun.train_rank(info, None, spec, RankListener(0, None))
    rendezvous = torchrun.FolderRendezvous(info, tmp_path, survives_restart=True)
    assert rendezvous.note.read_text(encoding="utf-8") == run.name
    rendezvous.forget()


def test_who_listens_within_another_hears_what_came_before() -> None:
    with stop_signals() as outer:
        os.kill(os.getpid(), signal.SIGTERM)
        with stop_signals() as inner:
            assert inner.stops == 1
        os.kill(os.getpid(), signal.SIGTERM)
        assert outer.stops == 2
    with stop_signals() as later:
        assert later.stops == 0
