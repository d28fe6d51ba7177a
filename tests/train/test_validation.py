"""What a run is evaluated on and when: held-out samples, at the end only, or never."""

import io
from pathlib import Path

import pytest
import torch
from rich.console import Console
from user_networks import same_weights

from stepscope.analyze.run_summary import Measured, summarize
from stepscope.data.loaders.worker_pool import WorkerPool
from stepscope.data.record_dataset import RecordBatches
from stepscope.data.sample_order import hold_out
from stepscope.errors import RequestError
from stepscope.report.terminal.run_tables import print_run
from stepscope.settings.load_settings import validate
from stepscope.supervisor import preflight
from stepscope.train.epoch_plan import Stage, plan_stages
from stepscope.train.split_loaders import held_out_split, open_split

HELD = 60


def test_a_run_is_evaluated_on_held_out_samples_where_it_would_be_tested(train):
    result = {}
    run = train(validation=HELD, result=result)
    splits = ["validation", "train", "validation", "train", "validation"]
    assert run.epochs["split"] == splits
    assert run.epochs["samples"] == [HELD, 192 - HELD, HELD, 192 - HELD, HELD]
    summary = summarize(run, Measured(absent=result["absent"]))
    assert summary["validation_accuracy"] == run.epochs["accuracy"][-1]
    assert summary["test_accuracy"] is None
    assert "held-out samples" in summary["absent"]["test_accuracy"]
    assert "validation_accuracy" not in summary["absent"]
    console = Console(file=io.StringIO(), width=120)
    print_run(console, run)
    assert "validation" in console.file.getvalue(), "the table names what it was judged on"


def test_the_test_split_is_not_opened_and_counts_for_no_memory(train, monkeypatch):
    opened, messages = [], []

    def note(spec, split, *others):
        opened.append(split)
        return open_split(spec, split, *others)

    monkeypatch.setattr("stepscope.train.training_setup.open_split", note)
    run = train(validation=HELD, test_at="end", epochs=1, messages=messages)
    assert opened == ["train"]
    assert run.epochs["split"] == ["validation", "train", "validation"]
    [told] = [each["forecast"] for each in messages if each["type"] == "forecast"]
    assert told["items"]["dataset"]["note"] == "192 samples as bytes", "counted once"


def batches(**changes):
    """Return the training labels and the held-out images and labels that a spec's loaders give."""
    spec = validate({"samples": 192, "batch_size": 32, "validation": HELD, **changes})
    worker_pool = WorkerPool(spec.workers, lambda fallback: None)
    train = open_split(spec, "train", Path("data"), worker_pool)
    held = held_out_split(spec, train, worker_pool)
    found = [(images, labels) for (images, labels), _ in held.loader]
    taken = sum(len(labels) for (_, labels), _ in train.loader)
    for split in (train, held):
        split.loader.close()
    worker_pool.stop_watching()
    return taken, torch.cat([each[0] for each in found]), torch.cat([each[1] for each in found])


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 5},
        {"pipeline": "sample"},
        {"shuffle": "block"},
        {"workers": 1},
        {"augment": "none"},
    ],
    ids=str,
)
def test_the_same_samples_are_held_out_as_they_are_whatever_else_is_asked_for(changes):
    taken, images, labels = batches(**changes)
    _, same_images, same_labels = batches()
    assert (taken, len(labels)) == (192 - HELD, HELD)
    assert torch.equal(labels, same_labels)
    assert torch.allclose(images, same_images, atol=1e-6)


def test_no_step_takes_a_held_out_sample(train, monkeypatch):
    held = hold_out(192, HELD)
    taken, make = [], RecordBatches.__getitem__
    monkeypatch.setattr(
        RecordBatches, "__getitem__", lambda self, key: taken.append(key) or make(self, key)
    )
    train(validation=HELD)
    assert {bool(held[key.indices].any()) for key in taken if key.augment} == {False}
    assert {bool(held[key.indices].all()) for key in taken if not key.augment} == {True}


@pytest.mark.parametrize("validation", [192, 200])
def test_to_hold_out_all_samples_is_refused_before_anything_starts(validation):
    with pytest.raises(RequestError, match="wanted fewer than the 192"):
        preflight.check(validate({"samples": 192, "validation": validation}))


def test_a_batch_must_fit_into_what_is_left_to_train_on():
    with pytest.raises(RequestError, match="found 42 training samples"):
        preflight.check(validate({"samples": 192, "validation": 150, "batch_size": 64}))


def test_synthetic_batches_are_as_many_as_those_that_are_trained_on(train):
    run = train(validation=HELD, source="synthetic", epochs=1)
    assert sum(run.steps["samples"]) == 192 - HELD
    assert run.epochs["split"] == ["train"]


# --- evaluated at the end, or not at all ----------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "evaluations"),
    [({"at_end_only": True}, [Stage("test", 2)]), ({"evaluation_split": None}, [])],
    ids=["at the end", "never"],
)
def test_a_plan_has_its_training_epochs_and_the_evaluations_asked_for(asked, evaluations):
    stages = [Stage("train", 1, 6), Stage("train", 2, 2), *evaluations]
    assert plan_stages(2, 6, 8, **asked) == stages


@pytest.mark.parametrize(
    ("asked", "splits", "saved"),
    [
        ({"test_at": "end"}, ["train", "train", "test"], [1, 3]),
        ({"evaluate": False}, ["train", "train"], [1, 2]),
    ],
    ids=str,
)
def test_evaluating_less_often_trains_to_the_same_weights(trained, asked, splits, saved):
    often, seldom = trained(), trained(**asked)
    assert seldom.epochs["split"] == splits
    assert seldom.steps["loss"] == often.steps["loss"]
    assert same_weights(often, seldom)
    if "test" in splits:
        assert seldom.epochs["accuracy"][-1] == often.epochs["accuracy"][-1]
    stages = [event["stage"] for event in seldom.events if event["event"] == "checkpoint"]
    assert stages == saved, "a checkpoint after every epoch"


def test_why_there_is_no_test_accuracy_is_said_beside_reasons_of_other_kinds(train):
    result = {}
    train(evaluate=False, epochs=1, samples=64, layers=1, result=result)
    untested = "no evaluation: --no-evaluate"
    absent = {"layers": result["absent"]["layers"]}
    assert result["absent"] == {"test_accuracy": untested, "test_top5": untested, **absent}
    assert "layers" not in result
    tested = {}
    summary = summarize(train(epochs=1, result=tested), Measured())
    assert tested["absent"] == {}
    assert summary["absent"]["validation_accuracy"] == "not requested: --validation N"


def test_without_a_forecast_the_reason_is_told_in_its_place(train):
    messages = []
    run = train(forecast=False, epochs=1, messages=messages)
    assert len(run.steps) == 6
    told = [message["forecast"] for message in messages if message["type"] == "forecast"]
    assert told == [{"reason": "the memory forecast was skipped"}]
