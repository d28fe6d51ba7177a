"""A training that evaluates nothing: no tests, and all else as ever."""

from __future__ import annotations

from user_networks import same_weights

from stepscope.train.epoch_plan import Stage, plan_stages


def test_a_run_without_tests_is_its_training_epochs_alone():
    assert plan_stages(2, 6, 8, evaluation_split=None) == [
        Stage("train", 1, 6),
        Stage("train", 2, 2),
    ]


def test_it_trains_to_the_same_weights_as_one_with_tests(trained):
    tested, untested = trained(), trained(evaluate=False)
    assert untested.epochs["split"] == ["train", "train"]
    assert untested.steps["loss"] == tested.steps["loss"]
    assert same_weights(untested, tested)


def test_a_checkpoint_is_written_after_every_epoch(trained):
    events = trained(evaluate=False).events
    assert [each["stage"] for each in events if each["event"] == "checkpoint"] == [1, 2]


def test_why_there_is_no_test_accuracy_is_said_beside_reasons_of_other_kinds(train):
    result = {}
    train(evaluate=False, epochs=1, samples=64, layers=1, result=result)
    untested = "no evaluation: --no-evaluate"
    absent = {"layers": result["absent"]["layers"]}
    assert result["absent"] == {"test_accuracy": untested, "test_top5": untested, **absent}
    assert "layers" not in result
    tested = {}
    train(epochs=1, result=tested)
    assert tested["absent"] == {}


def test_without_a_forecast_the_reason_is_told_in_its_place(train):
    messages = []
    run = train(forecast=False, epochs=1, messages=messages)
    assert len(run.steps) == 6
    told = [message["forecast"] for message in messages if message["type"] == "forecast"]
    assert told == [{"reason": "the memory forecast was skipped"}]
