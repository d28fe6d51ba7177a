"""What the data sets of the registry have in common."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from image_files import make_folder
from text_files import make_texts
from torch.utils.data import Dataset

from stepscope.data import dataset_registry
from stepscope.data.dataset import DataSource
from stepscope.data.loaders.dataloader import make_loader
from stepscope.data.record_dataset import open_records
from stepscope.data.sample_order import EpochOrder
from stepscope.errors import DataError, RequestError


@pytest.mark.parametrize(
    "data_set",
    [dataset_registry.find("shapes"), dataset_registry.find("cifar10")],
    ids=lambda one: one.name,
)
class TestDataSetsOfRecords:
    def test_it_says_what_it_is(self, data_set):
        assert data_set.classes == len(set(data_set.class_names)) == 10
        assert data_set.shape == (3, 32, 32)
        assert data_set.records is not None
        assert all(0 < one < 1 for one in (*data_set.records.mean, *data_set.records.std))

    def test_verifying_an_empty_folder_gives_a_line_for_each_file(self, data_set, tmp_path):
        assert len(data_set.verify(tmp_path)) == 6
        assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_met_with_the_nearest():
    with pytest.raises(RequestError, match=r"no data set 'cifar-10'\. Did you mean 'cifar10'"):
        dataset_registry.find("cifar-10")
    with pytest.raises(RequestError, match="Known: cifar10, folder, shapes"):
        dataset_registry.find("zzz")


def test_shapes_needs_no_data_and_cifar10_does(tmp_path):
    dataset_registry.find("shapes").check(tmp_path)
    with pytest.raises(DataError, match="stepscope data get cifar10 --data-dir"):
        dataset_registry.find("cifar10").check(tmp_path)


@pytest.fixture(params=["records", "image files", "images in memory", "texts"])
def batches(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset[Any]:
    """The augmented batches of 12 samples."""
    if request.param == "records":
        return open_records(
            dataset_registry.find("shapes"), "train", DataSource(samples=12, augment_seed=7)
        ).batches
    if request.param == "texts":
        reading, name = DataSource(make_texts(tmp_path), samples=12), "text"
    else:
        source = "local" if request.param == "image files" else "memory"
        reading = DataSource(make_folder(tmp_path), source, shape=(3, 24, 32), augment_seed=7)
        name = "folder"
    open_batches = dataset_registry.find(name, reading).open_batches
    assert open_batches is not None
    return open_batches("train", reading).batches


def test_workers_and_pickled_copies_make_the_batches_that_one_process_makes(batches):
    order = EpochOrder(12, 5, seed=0, shuffle="full", epoch=1)
    wanted = [batches[key] for key in order]
    assert [len(labels) for _, labels in wanted] == [5, 5, 2]
    for dataset, workers in ((batches, 0), (batches, 2), (pickle.loads(pickle.dumps(batches)), 0)):
        made = list(make_loader(dataset, list(order), workers=workers))
        for here, there in zip(wanted, made, strict=True):
            assert all(map(torch.equal, here, there))
