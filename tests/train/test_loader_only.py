"""A run that only loads: the loader of the training, and no network."""

import pytest

from stepscope.analyze.run_summary import Measured, summarize
from stepscope.records.run_reader import load_run
from stepscope.records.table import read_table


@pytest.fixture
def load(train):
    def load(where=None, **settings):
        return train(where, kind="load", **settings)

    return load


def test_every_batch_is_loaded_and_nothing_is_done_with_it(load):
    messages = []
    run = load(samples=200, messages=messages)
    assert run.steps["samples"] == ([32] * 6 + [8]) * 2
    for phase in ("forward", "backward", "optimizer"):
        assert set(run.steps[f"{phase}_s"]) == {0.0}
    assert set(run.steps["loss"]) == {None}
    assert set(run.steps["detail"]) == {"full"}
    assert not (run.path / "checkpoint.pt").exists()
    assert run.epochs["split"] == ["train", "train"]
    assert run.epochs["samples"] == [200, 200]
    assert set(run.epochs["loss"]) == set(run.epochs["accuracy"]) == {None}
    assert all(rate > 0 for rate in run.epochs["samples_per_s"])
    assert {message["type"] for message in messages} == {"forecast", "ready", "progress"}
    last = [message for message in messages if message["type"] == "progress"][-1]
    assert (last["done"], last["loss"], last["accuracy"]) == (1.0, None, None)


def test_waits_work_and_transfers_are_measured_as_in_training(load):
    for row in load(workers=2).steps.rows():
        assert row["data_s"] > 0
        assert row["transfer_s"] > 0
        assert row["load_s"] > 0
        assert row["load_worker"] in (0, 1)
        known = row["data_s"] + row["transfer_s"] + row["other_s"]
        assert known == pytest.approx(row["step_s"], abs=1e-8)


def test_a_step_is_as_many_batches_as_an_optimiser_step_takes(load):
    run = load(samples=200, accumulate=3, epochs=1)
    assert run.steps["samples"] == [96, 96, 8]
    records = read_table(run.path / "records.csv").rows()
    assert [(row["value1"], row["value2"]) for row in records] == [(7, 7)]


@pytest.mark.parametrize(
    "settings", [{"model": "nowhere.to.be.found:network"}, {"source": "synthetic"}], ids=str
)
def test_no_network_is_built_and_any_source_will_do(load, settings):
    assert len(load(**settings, max_steps=4).steps) == 4


@pytest.mark.parametrize("looks", [0, 3, 6, 9])
def test_one_that_was_stopped_begins_again(load, looks):
    stopped = load(looks_before_stop=looks)
    assert len(stopped.steps) < 12
    again = load(stopped.path)
    assert again.steps["step"] == [1, 2, 3, 4, 5, 6] * 2
    assert again.epochs["epoch"] == [1, 2]


def test_its_summary_says_why_figures_of_a_network_are_not_there(load):
    result, messages = {}, []
    run = load(result=result, messages=messages)
    forecast = next(each["forecast"] for each in messages if each["type"] == "forecast")
    measured = Measured(absent=result["absent"], forecast=forecast)
    summary = summarize(load_run(run.path), measured)
    network = ("train_accuracy", "test_accuracy", "test_top5", "layers", "memory_bill")
    for name in network:
        assert summary[name] is None
        assert summary["absent"][name] == "nothing was trained: the loader ran alone"
    assert summary["samples_per_s"] > 0
    assert summary["accounted_share"] == pytest.approx(1, abs=0.1)
    assert summary["dropped_epochs"] == [1]
