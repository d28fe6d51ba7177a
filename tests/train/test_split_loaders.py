"""What feeds a training: synthetic batches, delays made on purpose, files that are cold."""

from pathlib import Path

import pytest

from stepscope.errors import DataError
from stepscope.hardware import page_cache
from stepscope.settings.load_settings import validate
from stepscope.stats.intervals import median
from stepscope.supervisor import preflight

# --- synthetic batches ----------------------------------------------------------------------------


def test_synthetic_batches_are_as_many_and_as_large_as_those_of_the_data(train):
    result = {}
    real, synthetic = train(samples=200), train(samples=200, source="synthetic", result=result)
    for column in ("epoch", "step", "samples"):
        assert synthetic.steps[column] == real.steps[column]
    assert synthetic.epochs["split"] == ["train", "train"]
    assert "synthetic" in result["absent"]["test_accuracy"], "why nothing was tested"


@pytest.mark.alone
def test_synthetic_batches_take_no_time_to_load(trained):
    real, synthetic = trained(), trained(source="synthetic")
    assert set(synthetic.steps["load_worker"]) == {-1}
    for column in ("load_s", "data_s"):
        assert median(synthetic.steps[column]) < median(real.steps[column]) / 4


def test_synthetic_batches_need_no_data(train, tmp_path):
    nowhere = {"data": "cifar10", "data_dir": str(tmp_path / "nothing")}
    preflight.check(validate({**nowhere, "source": "synthetic"}))
    assert len(train(**nowhere, source="synthetic", epochs=1).steps) == 6
    with pytest.raises(DataError):
        preflight.check(validate(nowhere))


# --- delays ---------------------------------------------------------------------------------------

SHORT = {"samples": 40, "batch_size": 32, "epochs": 1, "evaluate": False}
DELAY_MS = 1.5


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slower_pipeline_is_work_that_takes_no_cpu_and_changes_no_loss(train, trained, workers):
    run = train(**SHORT, workers=workers, pipeline_delay_ms=DELAY_MS)
    for row, samples in zip(run.steps.rows(), (32, 8), strict=True):
        assert row["load_s"] >= samples * DELAY_MS / 1000
        assert row["load_worker"] == workers - 1
        if workers:  # in the training process, threads of torch may still be spinning
            assert row["load_cpu_s"] < row["load_s"]
    assert run.steps["loss"] == trained(**SHORT).steps["loss"]


def test_a_slower_source_adds_to_a_slower_pipeline(train, tmp_path):
    local = {**SHORT, "source": "local", "data_dir": str(tmp_path / "data")}
    run = train(**local, source_delay_ms=DELAY_MS, pipeline_delay_ms=DELAY_MS)
    assert all(row["load_s"] >= row["samples"] * 2 * DELAY_MS / 1000 for row in run.steps.rows())
    assert made_cold(run) == [], "nobody asked for cold files"


# --- cold files -----------------------------------------------------------------------------------


@pytest.fixture
def train_cold(train, tmp_path, monkeypatch):
    """Train on files of the test's own; the machine's whole cache is left to its other users."""
    monkeypatch.setattr(page_cache, "DROP_CACHES", tmp_path / "not here")

    def train_cold(where=None, **settings):
        if where is None:
            settings = {"data_dir": str(tmp_path / "data"), **settings}
        return train(where, **settings)

    return train_cold


def made_cold(run):
    return [event for event in run.events if event["event"] == "page_cache"]


@pytest.mark.parametrize(("setting", "epochs"), [("cold", [1]), ("cold-epochs", [1, 2])])
def test_files_are_made_cold_before_the_first_epoch_or_before_each(train_cold, setting, epochs):
    run = train_cold(page_cache=setting)
    events = made_cold(run)
    assert [event["epoch"] for event in events] == epochs
    for event in events:
        assert (event["how"], event["files"]) == ("advised", 2), "of the training and of the test"
        assert event["bytes"] > 0
        assert event["cold_share"] is None or 0 <= event["cold_share"] <= 1
        assert "not here" in event["reason"]
    assert run.spec["source"] == "local"
    starts = {row["epoch"]: row["start_s"] for row in run.epochs.rows() if row["split"] == "train"}
    for event in events:
        assert event["time_s"] <= starts[event["epoch"]], "it belongs to no epoch"


def test_an_epoch_that_goes_on_is_made_cold_again(train_cold):
    stopped = train_cold(page_cache="cold", looks_before_stop=8)
    assert 0 < len(stopped.steps) < 6
    resumed = train_cold(stopped.path)
    assert [event["epoch"] for event in made_cold(resumed)] == [1, 1]


def test_only_the_files_that_are_read_are_made_cold(train_cold, tmp_path):
    run = train_cold(page_cache="cold", evaluate=False, epochs=1)
    file = next(Path(tmp_path / "data").rglob("*.bin"))
    assert [(event["files"], event["bytes"]) for event in made_cold(run)] == [
        (1, file.stat().st_size)
    ]
