"""A run outlives its loader workers, and nothing in it shows but the time."""

from __future__ import annotations

import multiprocessing

import pytest
from user_networks import same_weights

# Torch warns of more workers than CPUs; a machine may have one.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def fallbacks(run) -> list[dict]:
    return [event for event in run.events if event["event"] == "workers_fallback"]


def workers_by_step(run, epoch: int) -> list[int]:
    """Tell which worker made the batch of each step; -1 is the training process."""
    return [row["load_worker"] for row in run.steps.rows() if row["epoch"] == epoch]


@pytest.fixture
def trained_alone(trained):
    """The losses, rows and weights that every run here has to have."""
    return trained(model="worker_killers:one")


def assert_same(run, alone) -> None:
    assert run.steps["loss"] == alone.steps["loss"], "to the bit"
    for column in ("epoch", "step", "samples"):
        assert run.steps[column] == alone.steps[column], "each sample once"
    for column in ("epoch", "split", "loss", "accuracy", "top5", "samples"):
        assert run.epochs[column] == alone.epochs[column]
    assert same_weights(run, alone)
    assert multiprocessing.active_children() == [], "none is left behind"


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_killed_in_training_is_one_worker_less_for_the_rest_of_the_run(
    train, trained_alone, persistent
):
    messages = []
    killed = {"model": "worker_killers:one", "persistent_workers": persistent}
    run = train(**killed, workers=2, messages=messages)
    assert_same(run, trained_alone)
    assert [each["to"] for each in messages if each["type"] == "workers"] == [1], "told once"
    (fallback,) = fallbacks(run)
    assert (fallback["epoch"], fallback["split"]) == (1, "train")
    assert (fallback["from"], fallback["to"]) == (2, 1)
    assert fallback["batch"] == 3, "the batch after the one that was computed"
    assert "was killed by SIGKILL" in fallback["reason"]
    assert set(workers_by_step(run, 1)[2:]) == {0}
    assert set(workers_by_step(run, 2)) == {0}
    row = next(each for each in run.steps.rows() if (each["epoch"], each["step"]) == (1, 3))
    assert row["start_s"] < fallback["time_s"] < row["start_s"] + row["data_s"], "a wait for data"
    phases = ("data", "transfer", "forward", "backward", "optimizer", "other")
    assert sum(row[f"{phase}_s"] for phase in phases) == pytest.approx(row["step_s"], abs=1e-8)


def test_a_worker_killed_in_a_test_is_missing_in_training_too(train, trained_alone):
    run = train(model="worker_killers:one_in_the_test", workers=2, persistent_workers=True)
    assert_same(run, trained_alone)
    (fallback,) = fallbacks(run)
    assert (fallback["epoch"], fallback["split"], fallback["batch"]) == (0, "test", 2)
    assert set(workers_by_step(run, 1)) == {0}


def test_a_worker_killed_when_nothing_is_left_to_load_is_noticed_too(train, trained_alone):
    run = train(model="worker_killers:one_at_the_last_batch", workers=2)
    assert_same(run, trained_alone)
    # It may have been done by then: 6 batches are made before the last of them is computed.
    for fallback in fallbacks(run):
        assert (fallback["epoch"], fallback["batch"], fallback["to"]) == (1, 7, 1)


def test_a_stopped_run_that_lost_a_worker_goes_on_as_if_nothing_had_been(train, trained_alone):
    stopped = train(looks_before_stop=8, model="worker_killers:one", workers=2)
    assert 0 < len(stopped.steps) < 6
    assert len(fallbacks(stopped)) == 1
    assert_same(train(stopped.path), trained_alone)
