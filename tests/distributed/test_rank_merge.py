"""What becomes of a run whose ranks came, went and died: told from folders alone."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest
from whole_records import whole_event
from written_tables import step as whole_step
from written_tables import write_table

from stepscope.analyze.rank_balance import ranks_of
from stepscope.records import run_folder, schema
from stepscope.records.run_reader import load_run
from stepscope.supervisor.child_supervisor import Outcome
from stepscope.supervisor.rank_merge import KILLED, failed_peer, merge_ranks, outcome_of

DONE, STOPPED, FAILED = schema.COMPLETED, schema.INTERRUPTED, schema.FAILED


@pytest.fixture
def run(tmp_path: Path) -> run_folder.RunFolder:
    return run_folder.create(tmp_path, "ranks", "run", {})


def rank_of(
    run: run_folder.RunFolder,
    rank: int,
    status: str,
    reason: str | None = "as it is",
    *events: str,
    code: int | None = 70,
) -> run_folder.RunFolder:
    made = run_folder.create_rank(run.path, rank, "run", {})
    for event in events:
        add_event(made, event, 1.0)
    if status != schema.RUNNING:
        made.close(status=status, reason=reason, exit_code=code)
    return made


def add_event(made: run_folder.RunFolder, event: str, time_s: float) -> None:
    about = whole_event({"event": event})
    details = {name: value for name, value in about.items() if name not in ("event", "time_s")}
    made.add_event(event, time_s, **details)


def write(made: run_folder.RunFolder, file: str, *rows: dict[str, object]) -> None:
    write_table(made.path, file, rows)


def write_steps(made: run_folder.RunFolder, *steps: int, samples: int = 16) -> None:
    rows = [whole_step(step, samples=samples, loss=2.0) for step in steps]
    write(made, schema.STEPS, *rows)


def epoch_row(epoch: int, split: str = "train", samples: int = 8) -> dict[str, object]:
    start_s = 10 * epoch + (5 if split == "test" else 0)
    return {"epoch": epoch, "split": split, "samples": samples, "start_s": start_s}


def merged(run: run_folder.RunFolder, world_size: int = 2) -> Outcome:
    outcome = outcome_of(merge_ranks(run, world_size), world_size)
    assert outcome is not None
    return outcome


# --- which rank failed ----------------------------------------------------------------------------


def test_a_rank_of_earlier_that_failed_is_no_peer_of_fewer_ranks(run: run_folder.RunFolder) -> None:
    for rank, status in enumerate((STOPPED, STOPPED, FAILED)):
        rank_of(run, rank, status)
    assert failed_peer(run.path, 0, world_size=2) is None
    assert failed_peer(run.path, 0, world_size=3) == "rank 2 failed"
    assert failed_peer(run.path, 0, world_size=4) == "rank 2 failed"


def test_a_peer_that_never_had_a_folder_is_gone(run: run_folder.RunFolder) -> None:
    rank_of(run, 0, schema.RUNNING)
    assert failed_peer(run.path, 0, world_size=2) == "rank 1 ended before it created its folder"


def test_without_locks_a_peer_that_runs_is_not_taken_for_gone(
    run: run_folder.RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        rank_of(run, rank, schema.RUNNING).update_info(process=1)
    assert failed_peer(run.path, 0, world_size=2) == "rank 1 failed", "nobody holds it"
    with run_folder.RunFolder(run.path / "ranks" / "1").held():
        assert failed_peer(run.path, 0, world_size=2) is None

    def no_locks(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert run.is_held() is None
    assert failed_peer(run.path, 0, world_size=2) is None


# --- how the run ended ----------------------------------------------------------------------------


def test_the_ranks_of_a_run_are_told_by_number_and_not_by_how_many_there_are(
    run: run_folder.RunFolder,
) -> None:
    rank_of(run, 1, DONE)
    rank_of(run, 2, FAILED)
    assert [rank.path.name for rank in merge_ranks(run, 2)] == ["1"]


@pytest.mark.parametrize(
    ("first", "second", "ended"),
    [
        ((FAILED, "lost a peer", schema.PEER_LOST), (FAILED, "killed"), (FAILED, "rank 1: killed")),
        (
            (FAILED, "a fault", schema.PEER_LOST, "resume"),
            (STOPPED, "stopped"),
            (FAILED, "rank 0: a fault"),
        ),
        ((DONE, None), None, (FAILED, "wanted 2 ranks, found the folders of 1")),
    ],
    ids=["the other lost its peer", "a peer lost before a restart is forgotten", "no folder"],
)
def test_the_rank_that_failed_of_itself_is_named(
    run: run_folder.RunFolder,
    first: tuple[str, ...],
    second: tuple[str, ...] | None,
    ended: tuple[str, str],
) -> None:
    rank_of(run, 0, *first, code=10)
    if second is not None:
        rank_of(run, 1, *second, code=11)
    outcome = merged(run)
    assert (outcome.status, outcome.reason) == ended
    named = {"rank 0": 10, "rank 1": 11}
    assert outcome.exit_code == named.get(ended[1][:6], 70)


def test_without_a_folder_of_any_rank_there_is_no_outcome(run: run_folder.RunFolder) -> None:
    assert outcome_of(merge_ranks(run, 2), 2) is None


def test_a_rank_that_was_cut_off_is_closed_as_told_with_its_exit_code(
    run: run_folder.RunFolder,
) -> None:
    rank_of(run, 0, DONE, code=0)
    resumed = rank_of(run, 1, STOPPED, code=130)
    resumed.update_info(status=schema.RUNNING, process=1, exit_code=130)
    outcome = merged(run)
    assert (outcome.status, outcome.exit_code) == (FAILED, KILLED.exit_code)
    closed = load_run(resumed.path)
    assert (closed.status, closed.info["exit_code"]) == (FAILED, KILLED.exit_code)


def test_a_rank_without_an_exit_code_is_a_fault(run: run_folder.RunFolder) -> None:
    rank_of(run, 0, FAILED, code=None)
    assert merged(run, 1).exit_code == 70


@pytest.mark.parametrize(("processes", "shown"), [(3, 3), (2, 2), (1, 0), (None, 3)])
def test_only_ranks_that_took_part_lately_are_shown(
    run: run_folder.RunFolder, processes: int | None, shown: int
) -> None:
    run.update_info(spec={} if processes is None else {"processes": processes})
    for rank in range(3):
        rank_of(run, rank, DONE)
    found = load_run(run.path)
    assert [int(rank.path.name) for rank in ranks_of(found)] == list(range(shown))


# --- the tables of the run ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "status", "ranks", "steps"),
    [
        ((), FAILED, [(1, 2, 3), (1,)], [(1, 32)]),
        ((), DONE, [(1, 2), (1,)], [(1, 32), (2, 16)]),
        ((1, 2), FAILED, [(1, 2, 3), (1, 2, 3), ()], [(1, 32), (2, 32)]),
        ((1, 2, 3, 4), DONE, [(1, 2, 5, 6)] * 2, [(step, 32) for step in range(1, 7)]),
        ((3, 4), DONE, [(1, 2, 5, 6)] * 2, [(step, 32) for step in range(1, 7)]),
    ],
    ids=[
        "steps that a killed rank has not made are left out",
        "a script's rank that ended well with fewer steps takes none away",
        "a new rank that died before its first step takes none away",
        "steps of one process between those of two stand in their order",
        "steps of one process alone stand in their order",
    ],
)
def test_a_step_of_the_run_is_one_that_all_ranks_made(
    run: run_folder.RunFolder,
    known: tuple[int, ...],
    status: str,
    ranks: list[tuple[int, ...]],
    steps: list[tuple[int, int]],
) -> None:
    write_steps(run, *known, samples=32)
    for rank, made in enumerate(ranks):
        write_steps(rank_of(run, rank, status), *made)
    merge_ranks(run, len(ranks))
    rows = load_run(run.path).steps.rows()
    assert [(row["step"], row["samples"]) for row in rows] == steps


def test_samples_that_one_rank_does_not_know_are_unknown_of_all(run: run_folder.RunFolder) -> None:
    whole = {"epoch": 1, "split": "train", "total_s": 2.0}
    first, second = (rank_of(run, rank, DONE) for rank in (0, 1))
    for rank, samples in ((first, 16), (second, "")):
        steps = (whole_step(1, samples=16, loss=1.0), whole_step(2, samples=samples, loss=3.0))
        write(rank, schema.STEPS, *steps)
        known = 32 if samples else ""
        write(rank, schema.EPOCHS, {**whole, "samples": known, "samples_per_s": 16.0})
    merge_ranks(run, 2)
    found = load_run(run.path)
    assert found.steps["samples"] == [32, None]
    assert found.steps["loss"] == [1.0, 3.0]
    [epoch] = found.epochs.rows()
    assert (epoch["samples"], epoch["samples_per_s"]) == (None, 32.0)


def test_epochs_of_one_process_between_those_of_two_are_kept(run: run_folder.RunFolder) -> None:
    alone = [epoch_row(epoch, split) for epoch in (1, 2) for split in ("train", "test")]
    write(run, schema.EPOCHS, *alone)
    for rank in (0, 1):
        shared = (epoch_row(1), epoch_row(3), epoch_row(3, "test"))
        write(rank_of(run, rank, DONE), schema.EPOCHS, *shared)
    merge_ranks(run, 2)
    rows = load_run(run.path).epochs.rows()
    assert [(each["epoch"], each["split"], each["samples"]) for each in rows] == [
        (1, "train", 16),
        (1, "test", 8),
        (2, "train", 8),
        (2, "test", 8),
        (3, "train", 16),
        (3, "test", 16),
    ]


def test_records_and_samples_from_before_there_were_ranks_are_kept(
    run: run_folder.RunFolder,
) -> None:
    def record(epoch: int) -> dict[str, object]:
        numbers = dict.fromkeys(("loading", "duration", "value1", "value2"), 0.5)
        return {"type": 0, "epoch": epoch, "start": 100.0 + epoch, **numbers}

    write(run, schema.RECORDS, record(1))
    write(run, schema.TELEMETRY, *({"time_s": time_s, "workers": 1} for time_s in (0, 1, 8)))
    first = rank_of(run, 0, DONE)
    write(first, schema.RECORDS, record(2), record(3))
    write(first, schema.TELEMETRY, *({"time_s": time_s, "workers": 2} for time_s in (7, 8, 9)))
    for _ in range(2):  # as after a resume
        merge_ranks(run, 1)
        found = load_run(run.path)
        lines = (run.path / schema.RECORDS).read_text(encoding="utf-8").splitlines()[1:]
        assert [line.split(",")[1] for line in lines] == ["1", "2", "3"]
        assert list(found.telemetry["time_s"]) == [0, 1, 7, 8, 9]
        assert list(found.telemetry["workers"]) == [1, 1, 2, 2, 2]


def test_samples_of_one_process_between_two_lives_of_rank_0_are_kept(
    run: run_folder.RunFolder,
) -> None:
    write(run, schema.TELEMETRY, *({"time_s": time_s} for time_s in (0, 1, 4, 5, 8.5)))
    first = rank_of(run, 0, DONE)
    add_event(first, "resume", 7.0)
    write(first, schema.TELEMETRY, *({"time_s": time_s} for time_s in (0, 1, 8, 9)))
    merge_ranks(run, 1)
    assert list(load_run(run.path).telemetry["time_s"]) == [0, 1, 4, 5, 8, 9]


def test_what_held_rank_0_s_machine_back_is_told_of_the_run_once(run: run_folder.RunFolder) -> None:
    events = ("throttling_watched", "throttling", "checkpoint")
    rank_of(run, 0, DONE, None, *events)
    rank_of(run, 1, DONE)
    merge_ranks(run, 2)
    merge_ranks(run, 2)  # as after a resume
    assert [event["event"] for event in load_run(run.path).events] == [*events[:2]]
