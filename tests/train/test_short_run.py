"""A training made short for its memory: which batches are left of it."""

from __future__ import annotations

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


def test_an_epoch_keeps_two_full_batches_and_its_last():
    short = short_job(batch_size=16)
    assert sizes(short.train.order) == [16, 16, 4]
    assert sizes(short.test.order) == [16, 4]
    assert [stage.split for stage in short.stages] == ["test", "train", "test", "train", "test"]
    assert steps(short) == [3, 2]


def test_where_there_are_few_samples_none_comes_twice():
    assert sizes(short_job(batch_size=64).train.order) == [64, 36]
    whole = short_job(batch_size=100)
    assert sizes(whole.train.order) == [100]
    assert steps(whole) == [1, 1]
    assert sizes(short_job(batch_size=25).train.order) == [25, 25]


def test_workers_find_as_many_batches_as_they_keep_ready():
    short = short_job(batch_size=4, workers=2, prefetch=3, samples=102)
    assert sizes(short.train.order) == [4] * 7 + [2]


@pytest.mark.parametrize(("accumulate", "batches"), [(2, [8, 8, 4]), (3, [8, 8, 8, 4])])
def test_steps_of_several_batches_are_whole(accumulate, batches):
    short = short_job(batch_size=8, accumulate=accumulate)
    assert sizes(short.train.order) == batches
    assert steps(short)[1] == 1


def test_all_samples_stay_in_memory():
    assert len(short_job(batch_size=8).train.dataset) == 100


def test_a_training_without_tests_is_short_without_them_too():
    short = short_job(batch_size=16, evaluate=False)
    assert short.test is None
    assert [stage.split for stage in short.stages] == ["train", "train"]
    assert steps(short) == [3, 2]


def test_synthetic_batches_are_cut_like_any_other():
    short = short_job(batch_size=16, source="synthetic")
    assert sizes(short.train.order) == [16, 16, 4]
    assert [len(labels) for (_, labels), _ in short.train.loader] == [16, 16, 4]
