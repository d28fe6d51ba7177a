"""The run's own tables grow while its ranks train, and read at every moment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.records import run_folder, schema
from stepscope.records.csv_log import keep_rows
from stepscope.records.run_reader import load_run
from stepscope.supervisor.rank_merge import merge_ranks
from stepscope.supervisor.rank_tables import GrowingTables


def step_line(epoch: int, step: int, samples: int, loss: float) -> str:
    known = {"epoch": epoch, "step": step, "samples": samples, "loss": loss, "step_s": 1.0}
    return ",".join(str(known.get(column, "")) for column in schema.STEP_COLUMNS)


def epoch_line(epoch: int, split: str, samples: int) -> str:
    known = {"epoch": epoch, "split": split, "samples": samples, "total_s": 2.0}
    return ",".join(str(known.get(column, "")) for column in schema.EPOCH_COLUMNS)


def append(file: Path, *lines: str, end: str = "\n") -> None:
    with file.open("a", encoding="utf-8") as table:
        table.write("".join(f"{line}{end}" for line in lines))


@pytest.fixture
def run(tmp_path: Path) -> run_folder.RunFolder:
    return with_ranks(tmp_path)


def with_ranks(where: Path, ranks: int = 2) -> run_folder.RunFolder:
    made = run_folder.create(where, "ranks", "run", {})
    for rank in range(ranks):
        run_folder.create_rank(made.path, rank, "run", {})
    return made


def steps_of(run: run_folder.RunFolder, rank: int, file: str = schema.STEPS) -> Path:
    return run.path / schema.RANKS / str(rank) / file


def epochs_of(run: run_folder.RunFolder, rank: int) -> Path:
    return steps_of(run, rank, schema.EPOCHS)


def written(run: run_folder.RunFolder) -> list[tuple[int, int, int]]:
    return [(row["epoch"], row["step"], row["samples"]) for row in load_run(run.path).steps.rows()]


def test_the_loss_of_a_step_is_weighed_by_samples(run: run_folder.RunFolder) -> None:
    append(steps_of(run, 0), step_line(1, 1, 24, 2.0), step_line(1, 2, 24, 2.0))
    append(steps_of(run, 1), step_line(1, 1, 8, 4.0))
    GrowingTables(run.path, 3).update()
    assert written(run) == [], "the third rank has no folder yet"
    GrowingTables(run.path, 2).update()
    assert written(run) == [(1, 1, 32)]
    assert list(load_run(run.path).steps["loss"]) == [2.5]


def test_a_line_that_is_half_written_is_taken_when_it_is_whole(run: run_folder.RunFolder) -> None:
    tables = GrowingTables(run.path, 2)
    line = step_line(1, 1, 8, 4.0)
    append(steps_of(run, 0), line)
    for part in (line[:9], line[9:]):
        append(steps_of(run, 1), part, end="")
        tables.update()
        assert written(run) == []
    append(steps_of(run, 1), "")
    tables.update()
    assert written(run) == [(1, 1, 16)]


def test_ranks_that_go_back_to_a_checkpoint_do_their_steps_again(run: run_folder.RunFolder) -> None:
    tables = GrowingTables(run.path, 2)
    for rank in (0, 1):
        append(steps_of(run, rank), *(step_line(1, step, 16, 2.0) for step in (1, 2, 3)))
    tables.update()
    for file in (steps_of(run, 0), run.path / schema.STEPS, steps_of(run, 1)):
        keep_rows(file, lambda row: int(row["step"]) <= 1)
        tables.update()
    assert written(run) == [(1, 1, 32)]
    for rank in (0, 1):
        append(steps_of(run, rank), step_line(1, 2, 10, 2.0))
    tables.update()
    assert written(run) == [(1, 1, 32), (1, 2, 20)]


def test_a_rank_that_joins_later_holds_nothing_back_that_was_before_it(tmp_path: Path) -> None:
    run = with_ranks(tmp_path)
    append(run.path / schema.STEPS, step_line(1, 1, 32, 2.0))
    append(steps_of(run, 0), step_line(1, 1, 32, 2.0), step_line(1, 2, 16, 2.0))
    append(steps_of(run, 1), step_line(1, 2, 16, 2.0))
    GrowingTables(run.path, 2).update()
    assert written(run) == [(1, 1, 32), (1, 2, 32)]


def test_an_epoch_is_there_when_every_rank_has_ended_it_or_is_past_it(
    run: run_folder.RunFolder,
) -> None:
    tables = GrowingTables(run.path, 2)

    def epochs() -> list[tuple[int, str, int]]:
        rows = load_run(run.path).epochs.rows()
        return [(row["epoch"], row["split"], row["samples"]) for row in rows]

    append(epochs_of(run, 0), epoch_line(1, "train", 20), epoch_line(1, "test", 5))
    append(epochs_of(run, 1), epoch_line(1, "train", 12))
    tables.update()
    assert epochs() == [(1, "train", 32)]
    append(epochs_of(run, 1), epoch_line(2, "train", 12))
    tables.update()
    assert epochs() == [(1, "train", 32), (1, "test", 5)], "only rank 0 is tested"


def test_tests_within_an_epoch_are_added_up_one_by_one(run: run_folder.RunFolder) -> None:
    for rank in (0, 1):
        append(epochs_of(run, rank), epoch_line(1, "test", 4), epoch_line(1, "test", 6))
    GrowingTables(run.path, 2).update()
    assert list(load_run(run.path).epochs["samples"]) == [8, 12]
    merge_ranks(run, 2)
    assert list(load_run(run.path).epochs["samples"]) == [8, 12]


@settings(max_examples=30)
@given(
    pace=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=30),
    looks=st.sets(st.integers(0, 29)),
)
def test_at_whatever_pace_the_end_is_what_all_ranks_made(
    tmp_path_factory: pytest.TempPathFactory,
    pace: Sequence[tuple[int, int]],
    looks: set[int],
) -> None:
    run = with_ranks(tmp_path_factory.mktemp("any"), ranks=3)
    tables, made = GrowingTables(run.path, 3), [0, 0, 0]
    for moment, (rank, steps) in enumerate(pace):
        for _ in range(steps):
            made[rank] += 1
            append(steps_of(run, rank), step_line(1, made[rank], rank + 1, 2.0))
        if moment in looks:
            tables.update()
            assert written(run) == [(1, step, 6) for step in range(1, min(made) + 1)]
    tables.update()
    assert written(run) == [(1, step, 6) for step in range(1, min(made) + 1)]
    merge_ranks(run, 3)
    assert written(run) == [(1, step, 6) for step in range(1, min(made) + 1)]
