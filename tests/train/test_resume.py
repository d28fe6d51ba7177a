"""A run that was stopped goes on as if it had never been."""

from __future__ import annotations

import json

import pytest
import torch
from train_helpers import DROPOUT, same_weights

from stepscope.errors import DataError, RequestError

# The loop looks for a stop before it takes a batch or a step, and twice after a test: a test of two
# batches takes five looks, an epoch of six steps takes six.
IN_THE_FIRST_TEST = 1
IN_THE_FIRST_EPOCH = 8
IN_THE_SECOND_EPOCH = 19


@pytest.mark.parametrize("looks", [IN_THE_FIRST_TEST, IN_THE_FIRST_EPOCH, IN_THE_SECOND_EPOCH])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_and_resumed_run_equals_one_that_was_never_stopped(train, looks, workers):
    settings = {"workers": workers, "optimizer": "adam", "schedule": "one-cycle", "lr": 0.001}
    whole = train(**settings)
    stopped = train(looks_before_stop=looks, **settings)
    assert len(stopped.steps) < len(whole.steps)
    resumed = train(stopped.path)
    assert resumed.steps["loss"] == whole.steps["loss"]
    assert resumed.steps["step"] == whole.steps["step"]
    for column in ("epoch", "split", "loss", "accuracy", "top5", "samples"):
        assert resumed.epochs[column] == whole.epochs[column]
    assert same_weights(resumed, whole)


def test_a_loss_scaler_goes_on_with_the_scale_it_had(train):
    whole = train(precision="fp16")
    stopped = train(looks_before_stop=IN_THE_SECOND_EPOCH, precision="fp16")
    resumed = train(stopped.path)
    assert resumed.steps["loss"] == whole.steps["loss"]
    assert same_weights(resumed, whole)


def test_a_run_may_be_stopped_many_times(train):
    whole = train()
    run = train(looks_before_stop=7)
    for _ in range(3):
        run = train(run.path, looks_before_stop=3)
    assert same_weights(train(run.path), whole)


def test_dropout_goes_on_from_the_random_state_it_had(train):
    settings = {"model": DROPOUT, "samples": 48, "batch_size": 16, "epochs": 1}
    whole = train(**settings)
    stopped = train(looks_before_stop=5, **settings)
    assert 0 < len(stopped.steps) < 3
    assert train(stopped.path).steps["loss"] == whole.steps["loss"]


def test_rows_after_the_checkpoint_are_done_again_and_stand_once(train):
    whole = train()
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


def test_the_epoch_in_which_it_was_stopped_has_the_time_of_both_parts(train):
    resumed = train(train(looks_before_stop=IN_THE_SECOND_EPOCH).path)
    steps_s = sum(
        took
        for took, epoch in zip(resumed.steps["step_s"], resumed.steps["epoch"], strict=True)
        if epoch == 2
    )
    row = next(r for r in resumed.epochs.rows() if r["epoch"] == 2 and r["split"] == "train")
    parts = row["loader_start_s"] + steps_s + row["loader_stop_s"]
    assert parts == pytest.approx(row["total_s"], rel=0.01)


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint"])
def test_a_damaged_checkpoint_is_said_to_be_one(train, damage):
    run = train(looks_before_stop=IN_THE_FIRST_EPOCH)
    (run.path / "checkpoint.pt").write_bytes(damage)
    with pytest.raises(DataError, match="Remove that file to begin"):
        train(run.path)


def test_a_checkpoint_is_read_without_running_what_is_in_it(train, tmp_path):
    class Hostile:
        def __reduce__(self):
            return (open, (str(tmp_path / "it ran"), "w"))

    run = train(looks_before_stop=IN_THE_FIRST_EPOCH)
    torch.save({"model": Hostile()}, run.path / "checkpoint.pt")
    with pytest.raises(DataError):
        train(run.path)
    assert not (tmp_path / "it ran").exists()


@pytest.mark.parametrize(("name", "value"), [("batch_size", 64), ("seed", 5), ("lr", 0.5)])
def test_a_run_does_not_go_on_with_other_settings(train, name, value):
    run = train(looks_before_stop=IN_THE_FIRST_EPOCH)
    info = json.loads((run.path / "run.json").read_text())
    info["spec"][name] = value
    (run.path / "run.json").write_text(json.dumps(info))
    with pytest.raises(RequestError, match=f"{name} was"):
        train(run.path)


def test_a_run_may_go_on_with_other_workers(train):
    whole = train()
    run = train(looks_before_stop=IN_THE_FIRST_EPOCH)
    info = json.loads((run.path / "run.json").read_text())
    info["spec"]["workers"] = 2
    (run.path / "run.json").write_text(json.dumps(info))
    assert train(run.path).steps["loss"] == whole.steps["loss"]


def test_a_checkpoint_from_before_a_setting_was_added_goes_on(train):
    stopped = train(looks_before_stop=IN_THE_FIRST_EPOCH)
    file = stopped.path / "checkpoint.pt"
    content = torch.load(file, weights_only=True)
    for name in ("page_cache", "drop_epochs", "evaluate"):
        del content["spec"][name]
    torch.save(content, file)

    assert len(train(stopped.path).steps) == len(train().steps)
