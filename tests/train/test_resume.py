"""A run that was stopped goes on as if it had never been."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from user_networks import DROPOUT, same_weights

from stepscope.errors import DataError, RequestError
from stepscope.records import run_folder

# The loop looks for a stop before it takes a batch or a step, and twice after a test: a test of two
# batches takes five looks, an epoch of six steps takes six.
IN_THE_FIRST_TEST = 1
IN_THE_FIRST_EPOCH = 8
IN_THE_SECOND_EPOCH = 19


@pytest.fixture
def stopped(trained, tmp_path):
    """The folder of a run that was stopped in its first epoch, to be done with as one likes."""
    run = trained(looks_before_stop=IN_THE_FIRST_EPOCH)
    return shutil.copytree(run.path, tmp_path / "stopped")


def change_setting(folder, name, value):
    info = json.loads((folder / "run.json").read_text())
    info["spec"][name] = value
    (folder / "run.json").write_text(json.dumps(info))


SCHEDULED = {"optimizer": "adam", "schedule": "one-cycle", "lr": 0.001}
HELD_OUT = {"validation": 60}  # two batches; an epoch of what is left has five steps
UNTESTED = {"evaluate": False}  # an epoch takes six looks, its checkpoint one
TESTED_LAST = {"test_at": "end"}


@pytest.mark.parametrize(
    ("settings", "looks", "workers"),
    [
        (SCHEDULED, IN_THE_FIRST_TEST, 0),
        (SCHEDULED, IN_THE_FIRST_EPOCH, 1),
        (SCHEDULED, IN_THE_SECOND_EPOCH, 0),
        ({"precision": "fp16"}, IN_THE_SECOND_EPOCH, 0),  # the loss scaler has its scale again
        ({"model": DROPOUT, "samples": 48, "batch_size": 16, "epochs": 1}, 5, 0),
        ({"source": "synthetic"}, 9, 0),
        *((HELD_OUT, looks, 0) for looks in (1, 7, 12)),
        *((UNTESTED, looks, 0) for looks in (0, 6, 9)),
        *((TESTED_LAST, looks, 0) for looks in (7, 9, 14)),
    ],
    ids=str,
)
def test_a_stopped_and_resumed_run_equals_one_that_was_never_stopped(
    train, trained, settings, looks, workers
):
    whole = trained(**settings)
    stopped = train(looks_before_stop=looks, workers=workers, **settings)
    assert len(stopped.epochs) < len(whole.epochs)
    resumed = train(stopped.path)
    assert resumed.steps["loss"] == whole.steps["loss"]
    assert resumed.steps["step"] == whole.steps["step"]
    for column in ("epoch", "split", "loss", "accuracy", "top5", "samples"):
        assert resumed.epochs[column] == whole.epochs[column]
    records = [(run.path / "records.csv").read_text().count("\n") for run in (resumed, whole)]
    assert records[0] == records[1]
    assert same_weights(resumed, whole)


def test_a_run_may_be_stopped_many_times(train, trained, stopped):
    for _ in range(2):
        train(stopped, looks_before_stop=3)
    assert same_weights(train(stopped), trained())


def test_rows_after_the_checkpoint_are_done_again_and_stand_once(train, trained):
    whole = trained()
    stopped = train(looks_before_stop=IN_THE_SECOND_EPOCH)
    for file, row in {
        "steps.csv": ",".join(["2", "6"] + ["9"] * 19 + ["full"]),
        "epochs.csv": "2,train" + ",9" * 11,
        "records.csv": "0,2" + ",9" * 5,
    }.items():
        with (stopped.path / file).open("a") as written_before_the_kill:
            written_before_the_kill.write(row + "\n2,cut")
    resumed = train(stopped.path)
    assert resumed.steps["loss"] == whole.steps["loss"]
    assert resumed.epochs["accuracy"] == whole.epochs["accuracy"]
    records = (resumed.path / "records.csv").read_text().splitlines()
    assert len(records) == len((whole.path / "records.csv").read_text().splitlines())


def test_the_epoch_in_which_it_was_stopped_has_the_time_of_both_parts(train, stopped):
    resumed = train(stopped)
    rows = resumed.steps.rows()
    steps_s = sum(row["step_s"] for row in rows if row["epoch"] == 1)
    row = next(r for r in resumed.epochs.rows() if r["epoch"] == 1 and r["split"] == "train")
    parts_s = row["loader_start_s"] + steps_s + row["loader_stop_s"]
    assert parts_s <= row["total_s"] < 2 * parts_s, "of no part alone, and without the pause"


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint"])
def test_a_damaged_checkpoint_is_said_to_be_one(train, stopped, damage):
    (stopped / "checkpoint.pt").write_bytes(damage)
    (stopped / "checkpoint.earlier.pt").unlink()
    with pytest.raises(DataError, match="Remove that file"):
        train(stopped)


def cut_last_row(table):
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))


def keep_header(table):
    table.write_text(table.read_text().splitlines(keepends=True)[0])


def empty(table):
    table.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut_last_row, keep_header, empty, Path.unlink])
@pytest.mark.parametrize("table", ["steps.csv", "epochs.csv"])
def test_a_run_goes_back_to_before_missing_rows(train, trained, stopped, table, damage):
    damage(stopped / table)
    run_folder.RunFolder(stopped).restore_missing_files()
    with pytest.warns(UserWarning, match="rows from before checkpoint.pt are missing"):
        resumed = train(stopped)
    assert resumed.steps["loss"] == trained().steps["loss"]
    assert resumed.epochs["loss"] == trained().epochs["loss"]
    assert same_weights(resumed, trained())
    assert "went_back" in [event["event"] for event in resumed.events]


def test_a_run_goes_back_no_further_than_it_must(train, trained):
    stopped = train(looks_before_stop=IN_THE_SECOND_EPOCH)
    cut_last_row(stopped.path / "steps.csv")
    before = (stopped.path / "steps.csv").read_text().splitlines()[:7]
    with pytest.warns(UserWarning, match="are missing"):
        resumed = train(stopped.path)
    after = (stopped.path / "steps.csv").read_text().splitlines()
    assert after[:7] == before, "the first epoch is not trained again"
    assert resumed.steps["loss"] == trained().steps["loss"]
    assert not (stopped.path / "checkpoint.earlier.pt").exists(), "not needed any more"


def test_an_earlier_checkpoint_replaces_a_damaged_one(train, trained, stopped):
    (stopped / "checkpoint.pt").write_bytes(b"\0" * 512)
    with pytest.warns(UserWarning, match="cannot resume from"):
        resumed = train(stopped)
    assert same_weights(resumed, trained())


def test_a_checkpoint_is_read_without_running_what_is_in_it(train, stopped, tmp_path):
    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "it ran"), "w"))

    torch.save({"model": Hostile()}, stopped / "checkpoint.pt")
    (stopped / "checkpoint.earlier.pt").unlink()
    with pytest.raises(DataError):
        train(stopped)
    assert not (tmp_path / "it ran").exists()


@pytest.mark.parametrize(("name", "value"), [("seed", 5), ("lr", 0.5), ("validation", 60)])
def test_a_run_does_not_go_on_with_other_settings(train, stopped, name, value):
    change_setting(stopped, name, value)
    with pytest.raises(RequestError, match=f"{name} was"):
        train(stopped)


def test_a_run_may_go_on_with_other_workers(train, trained, stopped):
    change_setting(stopped, "workers", 1)
    assert train(stopped).steps["loss"] == trained().steps["loss"]
