"""What every data set of the catalogue has in common."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepscope.data import dataset_registry
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

    def test_its_counts_follow_the_one_rule(self, data_set):
        assert data_set.count("train") == data_set.train_samples == 50_000
        assert data_set.count("test") == data_set.test_samples == 10_000
        assert data_set.count("test", 1000) == 200

    def test_more_samples_than_it_has_are_refused(self, data_set, tmp_path):
        assert data_set.records is not None
        for function in (data_set.records.load, data_set.records.open_files):
            with pytest.raises(RequestError, match=r"wanted 50,001 samples; .* has 50,000"):
                function("train", tmp_path, 50_001)

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


def test_the_catalogue_is_read_without_torch():
    rooms = "stepscope.data.dataset_registry, stepscope.data.datasets.cifar_download"
    code = f"import sys, {rooms}; assert not {{'torch', 'PIL'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
