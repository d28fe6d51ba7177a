"""The built-in data set: its bytes never change, and it is neither trivial nor out of reach."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stepscope.data.dataset import Split
from stepscope.data.datasets import shapes
from stepscope.data.record_dataset import RecordBatches
from stepscope.data.sample_order import BatchKey, EpochOrder
from stepscope.data.samples import MemorySamples, pack
from stepscope.errors import DataError, RequestError
from stepscope.models.lenet import LeNet

NOWHERE = Path("no-such-folder")


@pytest.fixture(scope="module")
def train() -> MemorySamples:
    return shapes.draw("train", 0, 10_000)


@pytest.fixture(scope="module")
def test() -> MemorySamples:
    return shapes.draw("test", 0, 2_000)


def md5(samples: MemorySamples) -> str:
    records = pack(samples.images, samples.labels)
    return hashlib.md5(records.tobytes(), usedforsecurity=False).hexdigest()


class TestBytes:
    def test_the_first_thousand_are_those_of_every_machine(self):
        assert md5(shapes.draw("train", 0, 1000)) == "48a6ed3c368ca569736daf82662691a9"

    def test_the_first_training_file_has_its_published_checksums(self, train):
        published = shapes.FILES.train[0]
        assert md5(train) == published.md5
        assert zlib.crc32(pack(train.images, train.labels).data) == published.crc32

    @pytest.mark.parametrize("count", [1, 7, 199, 201, 1000])
    def test_fewer_samples_are_a_prefix(self, train, count):
        prefix = shapes.load("train", NOWHERE, count)
        assert np.array_equal(prefix.images, train.images[:count])
        assert np.array_equal(prefix.labels, train.labels[:count])

    def test_the_size_of_a_block_does_not_matter(self, train, monkeypatch):
        monkeypatch.setattr(shapes, "_BLOCK", 37)
        assert np.array_equal(shapes.draw("train", 0, 500).images, train.images[:500])

    def test_train_and_test_share_no_image(self, train, test):
        seen = {image.tobytes() for image in train.images}
        assert len(seen) == len(train)
        assert not seen & {image.tobytes() for image in test.images}

    def test_test_samples_are_a_fifth_and_memory_loading_touches_no_disk(self):
        assert len(shapes.load("test", NOWHERE, 100)) == 20
        assert not NOWHERE.exists()


class TestClasses:
    @pytest.mark.parametrize("split", ["train", "test"])
    def test_every_ten_neighbours_hold_each_class_once(self, split):
        labels = shapes.labels_of(split, np.arange(1000)).reshape(100, 10)
        assert (np.sort(labels, axis=1) == np.arange(10)).all()
        assert len(np.unique(labels, axis=0)) > 20

    def test_mean_and_deviation_are_those_of_the_pixels(self, train):
        found = train.images.astype(np.float64) / 255
        assert found.mean(axis=(0, 2, 3)) == pytest.approx(shapes.MEAN, abs=0.004)
        assert found.std(axis=(0, 2, 3)) == pytest.approx(shapes.STD, abs=0.004)

    def test_every_figure_looks_the_same_in_a_mirror(self):
        side = np.linspace(-1.2, 1.2, 41, dtype=np.float32)
        u, v = np.meshgrid(side, side)
        for name, figure in shapes.FIGURES.items():
            outside = figure(u, v, np.abs(u), np.abs(v))
            assert np.allclose(outside, outside[:, ::-1], atol=1e-5), name
            assert 0.15 < (outside < 0).mean() < 0.75, name

    def test_a_linear_model_learns_next_to_nothing(self, train, test):
        """Least squares on the pixels, twice coarser: a closed form of a linear classifier."""

        def features(samples: MemorySamples) -> np.ndarray:
            halves = samples.images.reshape(-1, 3, 16, 2, 16, 2).mean(axis=(3, 5))
            flat = halves.reshape(len(samples), -1) / 255 - 0.5
            return np.concatenate([flat, np.ones((len(samples), 1))], axis=1)

        x, wanted = features(train), np.eye(10)[train.labels]
        weights = np.linalg.solve(x.T @ x + 10 * np.eye(x.shape[1]), x.T @ wanted)
        right = (features(test) @ weights).argmax(axis=1) == test.labels
        assert right.mean() < 0.35


class TestFiles:
    @pytest.fixture(autouse=True)
    def files_of_50_records(self, small_files):
        small_files(3, 50)

    @pytest.mark.parametrize(("samples", "count", "files"), [(None, 150, 3), (51, 51, 2)])
    def test_files_hold_what_memory_holds(self, tmp_path, samples, count, files):
        in_files = shapes.open_files("train", tmp_path, samples)
        in_memory = shapes.load("train", tmp_path, samples)
        assert len(in_files) == len(in_memory) == count
        assert len(list((tmp_path / shapes.FOLDER).iterdir())) == files
        everything = np.arange(count)
        assert np.array_equal(in_files.take(everything)[0], in_memory.images)
        assert np.array_equal(in_files.take(everything)[1], in_memory.labels)

    def test_files_are_written_once(self, tmp_path):
        first = shapes.open_files("test", tmp_path).paths[0].stat()
        again = shapes.open_files("test", tmp_path).paths[0].stat()
        assert (first.st_ino, first.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)

    @pytest.mark.parametrize("harm", ["cut", "alter"])
    def test_a_harmed_file_is_drawn_again(self, tmp_path, harm):
        path = shapes.open_files("test", tmp_path).paths[0]
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] if harm == "cut" else whole[:-1] + bytes([whole[-1] ^ 1]))
        status = {one["file"]: one["status"] for one in shapes.verify(tmp_path)}["test.bin"]
        assert status == {"cut": "truncated", "alter": "altered"}[harm]
        shapes.open_files("test", tmp_path)
        assert path.read_bytes() == whole

    def test_a_machine_that_draws_differently_is_told_so(self, tmp_path, monkeypatch):
        wrong = (shapes.RecordFile("test.bin", 50, "0" * 32),)
        monkeypatch.setattr(shapes, "FILES", replace(shapes.FILES, test=wrong))
        with pytest.raises(DataError, match=r"draws test\.bin differently"):
            shapes.open_files("test", tmp_path)
        assert not (tmp_path / shapes.FOLDER).exists()

    def test_getting_writes_all_files_and_verifying_finds_them_right(self, tmp_path):
        assert all("not written yet" in one["detail"] for one in shapes.verify(tmp_path))
        said: list[str] = []
        shapes.get(tmp_path, said.append)
        assert [one["status"] for one in shapes.verify(tmp_path)] == ["ok"] * 4
        assert all(one["detail"].startswith("md5") for one in shapes.verify(tmp_path))
        assert len(said) == 2

    def test_a_data_folder_that_cannot_be_written_is_named(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(RequestError, match=r"cannot write .*--data-dir"):
            shapes.open_files("test", tmp_path / "file")


@pytest.mark.long
class TestWholeDataSet:
    def test_all_files_have_their_published_checksums(self, tmp_path):
        shapes.get(tmp_path, lambda line: None)
        assert [one["status"] for one in shapes.verify(tmp_path)] == ["ok"] * 6

    def test_all_of_it_is_kept_and_read_again(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        splits: tuple[Split, ...] = ("train", "test")
        drawn = [md5(shapes.load(split, NOWHERE)) for split in splits]
        kept = shapes.verify_cache()
        assert kept is not None
        assert [one["status"] for one in kept["files"]] == ["ok"] * 6
        monkeypatch.delattr(shapes, "_draw")
        assert [md5(shapes.load(split, NOWHERE)) for split in splits] == drawn

    def test_mean_and_deviation_are_exact_over_all_of_it(self):
        images = shapes.load("train", NOWHERE).images
        for channel in range(3):
            pixels = images[:, channel].astype(np.float64) / 255
            assert pixels.mean() == pytest.approx(shapes.MEAN[channel], abs=1e-6)
            assert pixels.std() == pytest.approx(shapes.STD[channel], abs=1e-6)

    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_lenet_passes_90_percent_in_three_epochs(self, seed):
        accuracy = lenet_accuracy(shapes.load("train", NOWHERE), 3, seed)
        assert accuracy > 0.93


def lenet_accuracy(train: MemorySamples, epochs: int, seed: int, lr: float = 0.01) -> float:
    """Train a LeNet with random crops and flips; return its accuracy on the test samples."""
    torch.manual_seed(seed)
    net = LeNet(10)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    batches = RecordBatches(train, "batch", shapes.MEAN, shapes.STD, augment_seed=seed)
    for epoch in range(epochs):
        for key in EpochOrder(len(train), 64, seed, "full", epoch):
            images, labels = batches[key]
            torch.nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    test = shapes.load("test", NOWHERE, len(train))
    every = BatchKey(0, np.arange(len(test)))
    images, labels = RecordBatches(test, "batch", shapes.MEAN, shapes.STD, None)[every]
    with torch.no_grad():
        return float((net(images).argmax(1) == labels).float().mean())
