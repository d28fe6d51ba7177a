"""CIFAR-10 in all its layouts, in miniature; and the real one where it is at hand."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mini_cifar import MINI, STEMS, records_of
from tar_files import tar_gz

from stepscope.data.datasets import cifar
from stepscope.data.datasets.cifar import BIN_ARCHIVE, BIN_FOLDER, PY_ARCHIVE, PY_FOLDER
from stepscope.data.samples import RECORD_BYTES, unpack
from stepscope.errors import DataError

REAL = Path(__file__).resolve().parents[4] / "shared" / "data"


def bin_file(stem: str) -> tuple[str, bytes]:
    return f"{stem}.bin", records_of(stem).tobytes()


def py_file(stem: str) -> tuple[str, bytes]:
    records = records_of(stem)
    return stem, pickle.dumps({b"data": records[:, 1:], b"labels": records[:, 0].tolist()}, 2)


def write_files(folder: Path, file: Callable[[str], tuple[str, bytes]]) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in map(file, STEMS):
        (folder / name).write_bytes(content)


def write_archive(path: Path, folder: str, file: Callable[[str], tuple[str, bytes]]) -> None:
    files = [(f"{folder}/{name}", content) for name, content in map(file, STEMS)]
    tar_gz(path, *files, (f"{folder}/readme.html", b""))


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "bin folder": lambda data_dir: write_files(data_dir / BIN_FOLDER, bin_file),
    "bin files": lambda data_dir: write_files(data_dir, bin_file),
    "py folder": lambda data_dir: write_files(data_dir / PY_FOLDER, py_file),
    "py files": lambda data_dir: write_files(data_dir, py_file),
    "bin archive": lambda data_dir: write_archive(data_dir / BIN_ARCHIVE, BIN_FOLDER, bin_file),
    "py archive": lambda data_dir: write_archive(data_dir / PY_ARCHIVE, PY_FOLDER, py_file),
}


@pytest.fixture(params=LAYOUTS)
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    LAYOUTS[request.param](tmp_path)
    return tmp_path


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    LAYOUTS["bin folder"](tmp_path)
    return tmp_path


@pytest.mark.usefixtures("mini")
class TestAnyLayout:
    @pytest.mark.parametrize(("split", "stems"), [("train", STEMS[:2]), ("test", STEMS[2:])])
    def test_all_samples_are_loaded_in_order(self, data_dir, split, stems):
        samples = cifar.load(split, data_dir)
        images, labels = unpack(np.concatenate([records_of(stem) for stem in stems]))
        assert np.array_equal(samples.images, images)
        assert np.array_equal(samples.labels, labels)

    @pytest.mark.parametrize("split", ["train", "test"])
    @pytest.mark.parametrize("samples", [None, 1, 5, 6])
    def test_files_give_what_memory_gives(self, data_dir, split, samples):
        in_files = cifar.open_files(split, data_dir, samples)
        in_memory = cifar.load(split, data_dir, samples)
        assert len(in_files) == len(in_memory)
        for mine, theirs in zip(
            in_files.take(np.arange(len(in_files))),
            (in_memory.images, in_memory.labels),
            strict=True,
        ):
            assert np.array_equal(mine, theirs)

    def test_it_is_found_to_be_there_and_right(self, data_dir):
        before = sorted(data_dir.rglob("*"))
        cifar.check(data_dir)
        assert sorted(data_dir.rglob("*")) == before
        assert [one["status"] for one in cifar.verify(data_dir)] == ["ok"] * 3


@pytest.mark.usefixtures("mini")
class TestFaults:
    def refused(self, data_dir: Path) -> str:
        """Load all, be refused, and return why; files and memory must agree."""
        with pytest.raises(DataError) as caught:
            cifar.load("train", data_dir)
        with pytest.raises(DataError) as again:
            cifar.open_files("train", data_dir)
        assert str(again.value) == str(caught.value)
        assert f"stepscope data get cifar10 --data-dir {data_dir}" in str(caught.value)
        return str(caught.value)

    def test_nothing_there(self, tmp_path):
        assert "missing; no such file" in self.refused(tmp_path)
        with pytest.raises(DataError, match=r"missing data_batch_1\.bin, data_batch_2\.bin, test"):
            cifar.check(tmp_path)
        assert [one["status"] for one in cifar.verify(tmp_path)] == ["missing"] * 3

    def test_a_missing_file(self, bin_dir):
        (bin_dir / BIN_FOLDER / "data_batch_2.bin").unlink()
        assert "data_batch_2.bin: missing" in self.refused(bin_dir)
        with pytest.raises(DataError, match=r"missing data_batch_2\.bin \("):
            cifar.check(bin_dir)

    @pytest.mark.parametrize(
        ("file", "harm", "reason"),
        [
            ("data_batch_2", lambda whole: whole[:5000], "truncated; wanted 15365 bytes, found 5"),
            ("data_batch_1", lambda whole: whole + b"x", "too long; wanted 15365 bytes, found 1"),
            (
                "data_batch_2",
                lambda whole: whole[: 2 * RECORD_BYTES] + b"M" + whole[2 * RECORD_BYTES + 1 :],
                "bad label; record 2 has label 77, wanted 0 to 9",
            ),
            (
                "data_batch_1",
                lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]),
                f"altered; wanted md5 {MINI.train[0].md5}, found",
            ),
        ],
        ids=["cut off", "too long", "a label that is none", "an altered pixel"],
    )
    def test_a_damaged_file(self, bin_dir, file, harm, reason):
        path = bin_dir / BIN_FOLDER / f"{file}.bin"
        path.write_bytes(harm(path.read_bytes()))
        assert reason in self.refused(bin_dir)
        statuses = {one["file"]: one["status"] for one in cifar.verify(bin_dir)}
        assert statuses.pop(path.name) == reason.partition(";")[0]
        assert set(statuses.values()) == {"ok"}

    def test_a_file_of_another_size_is_seen_without_reading_it(self, bin_dir):
        os.truncate(bin_dir / BIN_FOLDER / "data_batch_2.bin", 5000)
        with pytest.raises(DataError, match="wrong size: wanted 15365 bytes, found 5000"):
            cifar.check(bin_dir)

    def test_what_is_not_needed_is_not_read(self, bin_dir):
        (bin_dir / BIN_FOLDER / "data_batch_2.bin").write_bytes(b"")
        assert len(cifar.load("train", bin_dir, 5)) == 5
        assert len(cifar.load("test", bin_dir)) == 5

    def test_a_complete_layout_is_preferred_to_one_that_lacks_a_file(self, bin_dir):
        (bin_dir / BIN_FOLDER / "data_batch_2.bin").unlink()
        LAYOUTS["py folder"](bin_dir)
        assert len(cifar.load("train", bin_dir)) == 10
        assert len(cifar.open_files("train", bin_dir)) == 10

    @pytest.mark.parametrize(
        ("batch", "reason"),
        [
            ([1, 2], "has no b'data'"),
            ({b"data": b"x"}, "has no b'data'"),
            ({b"data": np.zeros((5, 3072)), b"labels": [1] * 5}, "wanted uint8 pixels"),
            ({b"data": np.zeros((5, 9), np.uint8), b"labels": [1] * 5}, "wanted uint8 pixels"),
            ({b"data": np.zeros((5, 3072), np.uint8), b"labels": ["x"] * 5}, "wanted uint8"),
            ({b"data": np.zeros((5, 3072), np.uint8), b"labels": 7}, "wanted uint8 pixels"),
            ({b"data": np.zeros((3, 3072), np.uint8), b"labels": [1] * 3}, "truncated"),
            (
                {b"data": np.zeros((5, 3072), np.uint8), b"labels": [1, 300, 1, 1, 1]},
                "record 1 has",
            ),
            ({b"data": np.zeros((5, 3072), np.uint8), b"labels": [1, 1, -1, 1, 1]}, "record 2 has"),
            ({b"data": np.zeros((5, 3072), np.uint8), b"labels": [1] * 5}, "altered"),
            (os.getcwd, "has no b'data'"),
        ],
    )
    def test_a_pickle_that_is_not_a_batch(self, tmp_path, batch, reason):
        LAYOUTS["py folder"](tmp_path)
        (tmp_path / PY_FOLDER / "data_batch_1").write_bytes(pickle.dumps(batch, 2))
        assert reason in self.refused(tmp_path)

    def test_an_archive_that_was_cut_off(self, tmp_path):
        LAYOUTS["bin archive"](tmp_path)
        os.truncate(tmp_path / BIN_ARCHIVE, 9000)
        with pytest.raises(DataError, match="damaged or incomplete"):
            cifar.load("train", tmp_path)
        assert [one["status"] for one in cifar.verify(tmp_path)] == ["unreadable"]

    def test_a_folder_in_the_place_of_a_file(self, bin_dir):
        path = bin_dir / BIN_FOLDER / "data_batch_1.bin"
        path.unlink()
        path.mkdir()
        assert "unreadable; Is a directory" in self.refused(bin_dir)

    def test_a_folder_that_may_not_be_looked_into(self, bin_dir, monkeypatch):
        def denied(path: Path) -> bool:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "is_file", denied)
        with pytest.raises(DataError, match="is not complete"):
            cifar.check(bin_dir)


@pytest.mark.skipif(
    not (REAL / BIN_FOLDER).is_dir(), reason="the real CIFAR-10 does not lie beside the repository"
)
class TestRealData:
    def test_every_file_has_the_published_checksum(self):
        cifar.check(REAL)
        assert [one["status"] for one in cifar.verify(REAL)] == ["ok"] * 6

    def test_the_first_picture_is_a_frog_and_classes_are_balanced(self):
        samples = cifar.open_files("train", REAL)
        assert cifar.CLASS_NAMES[samples.take(np.array([0]))[1][0]] == "frog"
        labels = cifar.load("test", REAL).labels
        assert np.bincount(labels).tolist() == [1000] * 10

    def test_mean_and_deviation_are_those_of_the_pixels(self):
        images = cifar.load("train", REAL).images
        for channel in range(3):
            counts = np.bincount(images[:, channel].reshape(-1), minlength=256)
            levels = np.arange(256) / 255
            mean = (counts * levels).sum() / counts.sum()
            deviation = np.sqrt((counts * (levels - mean) ** 2).sum() / counts.sum())
            assert mean == pytest.approx(cifar.MEAN[channel], abs=1e-7)
            assert deviation == pytest.approx(cifar.STD[channel], abs=1e-7)
