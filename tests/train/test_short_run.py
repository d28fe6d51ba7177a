"""A training made short for its memory: which batches are left of it."""

from pathlib import Path

import pytest
from user_networks import LINEAR

from stepscope.settings.load_settings import validate
from stepscope.train import device, training_setup
from stepscope.train.training_setup import shorten


def short_job(**settings):
    spec = device.resolve(validate({"model": LINEAR, "samples": 100, **settings}))
    return shorten(training_setup.build(spec, training_setup.build_model(spec), Path()))


def sizes(order):
    return [len(key.indices) for key in order]


def steps(job):
    return [stage.steps for stage in job.stages if stage.split == "train"]


@pytest.mark.parametrize(
    ("settings", "batches", "epochs"),
    [
        ({"batch_size": 16}, [16, 16, 4], [3, 2]),
        ({"batch_size": 16, "source": "synthetic"}, [16, 16, 4], [3, 2]),
        ({"batch_size": 64}, [64, 36], [2, 2]),
        ({"batch_size": 100}, [100], [1, 1]),
        ({"batch_size": 25}, [25, 25], [2, 2]),
        ({"batch_size": 4, "workers": 2, "prefetch": 3, "samples": 102}, [4] * 7 + [2], [8, 2]),
        ({"batch_size": 8, "accumulate": 2}, [8, 8, 4], [2, 1]),
        ({"batch_size": 8, "accumulate": 3}, [8, 8, 8, 4], [2, 1]),
    ],
    ids=str,
)
def test_an_epoch_keeps_what_workers_keep_ready_but_two_full_batches_and_its_last(
    settings, batches, epochs
):
    short = short_job(**settings)
    assert sizes(short.train.order) == batches
    assert [len(labels) for (_, labels), _ in short.train.loader] == batches
    assert steps(short) == epochs
    short.close()


def test_a_test_keeps_its_first_and_its_last_batch_and_all_samples_stay_in_memory():
    short = short_job(batch_size=16)
    assert sizes(short.test.order) == [16, 4]
    assert [stage.split for stage in short.stages] == ["test", "train", "test", "train", "test"]
    assert len(short.train.dataset) == 100


def test_a_training_without_tests_is_short_without_them_too():
    short = short_job(batch_size=16, evaluate=False)
    assert short.test is None
    assert [stage.split for stage in short.stages] == ["train", "train"]
    assert steps(short) == [3, 2]
