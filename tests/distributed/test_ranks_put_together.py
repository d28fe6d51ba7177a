"""What becomes of a run whose ranks came, went and died: told from folders alone."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from stepscope.analyze.rank_balance import ranks_of
from stepscope.records import run_folder, schema
from stepscope.records.run_reader import load_run
from stepscope.supervisor.rank_merge import GONE, failed_peer, merge_ranks, outcome_of


@pytest.fixture
def run(tmp_path: Path) -> run_folder.RunFolder:
    return run_folder.create(tmp_path, "ranks", "run", {})


def rank_of(
    run: run_folder.RunFolder, rank: int, status: str, *, code: int = 70
) -> run_folder.RunFolder:
    made = run_folder.create_rank(run.path, rank, "run", {})
    if status != schema.RUNNING:
        made.close(status=status, reason="as it is", exit_code=code)
    return made


def write(made: run_folder.RunFolder, file: str, *rows: dict[str, object]) -> None:
    columns = schema.COLUMNS[file]
    lines = [",".join(str(row.get(column, "")) for column in columns) for row in rows]
    text = "\n".join([",".join(columns), *lines, ""])
    (made.path / file).write_text(text, encoding="utf-8")


def write_steps(made: run_folder.RunFolder, *steps: int, samples: int = 16, epoch: int = 1) -> None:
    rows = [{"epoch": epoch, "step": step, "samples": samples, "loss": 2.0} for step in steps]
    write(made, schema.STEPS, *rows)


def steps_of(run: run_folder.RunFolder) -> list[tuple[int, int]]:
    return [(row["step"], row["samples"]) for row in load_run(run.path).steps.rows()]


def test_a_rank_of_earlier_that_failed_is_no_peer_of_fewer_ranks(run: run_folder.RunFolder) -> None:
    for rank in (0, 1):
        rank_of(run, rank, schema.INTERRUPTED)
    rank_of(run, 2, schema.FAILED)
    assert failed_peer(run.path, 0, world_size=2) is None
    assert failed_peer(run.path, 0, world_size=3) == "rank 2 failed"


def test_a_peer_that_never_had_a_folder_is_gone(run: run_folder.RunFolder) -> None:
    rank_of(run, 0, schema.RUNNING)
    assert failed_peer(run.path, 0, world_size=2) == "rank 1 ended before it had a folder"


def test_without_locks_a_peer_that_runs_is_not_taken_for_gone(
    run: run_folder.RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        rank_of(run, rank, schema.RUNNING).update_info(process=1)
    assert failed_peer(run.path, 0, world_size=2) == "rank 1 failed", "nobody holds it"

    def no_locks(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert run.is_held() is None
    assert failed_peer(run.path, 0, world_size=2) is None


def test_the_ranks_of_a_run_are_told_by_number_and_not_by_how_many_there_are(
    run: run_folder.RunFolder,
) -> None:
    rank_of(run, 1, schema.COMPLETED)
    rank_of(run, 2, schema.FAILED)
    assert [rank.path.name for rank in merge_ranks(run, 2)] == ["1"]


def test_a_rank_that_was_cut_off_is_closed_as_told_with_its_exit_code(
    run: run_folder.RunFolder,
) -> None:
    rank_of(run, 0, schema.COMPLETED, code=0)
    taken_up = rank_of(run, 1, schema.INTERRUPTED, code=130)
    taken_up.update_info(status=schema.RUNNING, process=1, exit_code=130)
    outcome = outcome_of(merge_ranks(run, 2), 2)
    assert outcome is not None
    assert (outcome.status, outcome.exit_code) == (schema.FAILED, GONE.exit_code)
    assert load_run(taken_up.path).info["exit_code"] == GONE.exit_code


def test_a_rank_without_an_exit_code_is_a_fault(run: run_folder.RunFolder) -> None:
    rank_of(run, 0, schema.FAILED).update_info(exit_code=None)
    outcome = outcome_of(merge_ranks(run, 1), 1)
    assert outcome is not None
    assert outcome.exit_code == 70


def test_steps_that_a_killed_rank_has_not_made_are_left_out(run: run_folder.RunFolder) -> None:
    write_steps(rank_of(run, 0, schema.FAILED), 1, 2, 3)
    write_steps(rank_of(run, 1, schema.FAILED), 1)
    merge_ranks(run, 2)
    assert steps_of(run) == [(1, 32)]


def test_samples_that_one_rank_does_not_know_are_unknown_of_all(run: run_folder.RunFolder) -> None:
    whole = {"epoch": 1, "split": "train", "total_s": 2.0}
    first, second = (rank_of(run, rank, schema.COMPLETED) for rank in (0, 1))
    for rank, samples in ((first, 16), (second, "")):
        steps = [{"epoch": 1, "step": 1, "samples": 16, "loss": 1.0}]
        steps.append({"epoch": 1, "step": 2, "samples": samples, "loss": 3.0})
        write(rank, schema.STEPS, *steps)
        known = 32 if samples else ""
        write(rank, schema.EPOCHS, {**whole, "samples": known, "samples_per_s": 16.0})
    merge_ranks(run, 2)
    assert steps_of(run) == [(1, 32), (2, None)]
    assert load_run(run.path).steps["loss"] == [1.0, 3.0]
    [epoch] = load_run(run.path).epochs.rows()
    assert (epoch["samples"], epoch["samples_per_s"]) == (None, 32.0)


def test_an_epoch_that_a_killed_rank_has_not_ended_is_left_out(run: run_folder.RunFolder) -> None:
    def epochs(made: run_folder.RunFolder, *numbers: int) -> None:
        rows = [{"epoch": each, "split": "train", "samples": 16} for each in numbers]
        write(made, schema.EPOCHS, *rows)

    epochs(rank_of(run, 0, schema.FAILED), 1, 2)
    epochs(rank_of(run, 1, schema.FAILED), 1)
    merge_ranks(run, 2)
    assert list(load_run(run.path).epochs["samples"]) == [32]


def test_a_script_s_rank_that_ended_well_with_fewer_steps_takes_none_away(
    run: run_folder.RunFolder,
) -> None:
    write_steps(rank_of(run, 0, schema.COMPLETED), 1, 2)
    write_steps(rank_of(run, 1, schema.COMPLETED), 1)
    merge_ranks(run, 2)
    assert steps_of(run) == [(1, 32), (2, 16)]


def test_a_new_rank_that_died_before_its_first_step_takes_none_away(
    run: run_folder.RunFolder,
) -> None:
    write_steps(run, 1, 2, samples=32)
    for rank in (0, 1):
        write_steps(rank_of(run, rank, schema.FAILED), 1, 2, 3)
    rank_of(run, 2, schema.FAILED)
    merge_ranks(run, 3)
    assert steps_of(run) == [(1, 32), (2, 32)]


@pytest.mark.parametrize("known", [(1, 2, 3, 4), (3, 4)])
def test_steps_of_one_process_between_those_of_two_stand_in_their_order(
    run: run_folder.RunFolder, known: tuple[int, ...]
) -> None:
    write_steps(run, *known, samples=32)  # 3 and 4 by one process
    for rank in (0, 1):
        write_steps(rank_of(run, rank, schema.COMPLETED), 1, 2, 5, 6)
    merge_ranks(run, 2)
    assert steps_of(run) == [(step, 32) for step in range(1, 7)]


def test_epochs_of_one_process_between_those_of_two_are_kept(run: run_folder.RunFolder) -> None:
    def row(epoch: int, split: str) -> dict[str, object]:
        start_s = 10 * epoch + (5 if split == "test" else 0)
        return {"epoch": epoch, "split": split, "samples": 8, "start_s": start_s}

    write(run, schema.EPOCHS, row(1, "train"), row(1, "test"), row(2, "train"), row(2, "test"))
    for rank in (0, 1):
        made = rank_of(run, rank, schema.COMPLETED)
        write(made, schema.EPOCHS, row(1, "train"), row(3, "train"), row(3, "test"))
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
    first = rank_of(run, 0, schema.COMPLETED)
    write(first, schema.RECORDS, record(2), record(3))
    write(first, schema.TELEMETRY, *({"time_s": time_s, "workers": 2} for time_s in (7, 8, 9)))
    for _ in range(2):  # as after a resume
        merge_ranks(run, 1)
        merged = load_run(run.path)
        epochs = [line.split(",")[1] for line in record_lines(run)]
        assert epochs == ["1", "2", "3"]
        assert list(merged.telemetry["time_s"]) == [0, 1, 7, 8, 9]
        assert list(merged.telemetry["workers"]) == [1, 1, 2, 2, 2]


def record_lines(run: run_folder.RunFolder) -> list[str]:
    return (run.path / schema.RECORDS).read_text(encoding="utf-8").splitlines()[1:]


def test_samples_of_one_process_between_two_lives_of_rank_0_are_kept(
    run: run_folder.RunFolder,
) -> None:
    write(run, schema.TELEMETRY, *({"time_s": time_s} for time_s in (0, 1, 4, 5, 8.5)))
    first = rank_of(run, 0, schema.COMPLETED)
    first.add_event("resume", 7.0)
    write(first, schema.TELEMETRY, *({"time_s": time_s} for time_s in (0, 1, 8, 9)))
    merge_ranks(run, 1)
    assert list(load_run(run.path).telemetry["time_s"]) == [0, 1, 4, 5, 8, 9]


@pytest.mark.parametrize(("processes", "shown"), [(3, 3), (2, 2), (1, 0), (None, 3)])
def test_only_ranks_that_took_part_lately_are_shown(
    run: run_folder.RunFolder, processes: int | None, shown: int
) -> None:
    run.update_info(spec={} if processes is None else {"processes": processes})
    for rank in range(3):
        rank_of(run, rank, schema.COMPLETED)
    found = load_run(run.path)
    assert [int(rank.path.name) for rank in ranks_of(found)] == list(range(shown))
