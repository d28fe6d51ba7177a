"""One contract for everything that hands out samples, and what only files can get wrong."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepscope.data.dataset import IMAGE_SHAPE, samples_taken
from stepscope.data.samples import (
    RECORD_BYTES,
    MemorySamples,
    RecordFile,
    RecordFiles,
    Samples,
    inspect,
    pack,
    unpack,
)
from stepscope.errors import DataError, RequestError

COUNT = 23
PER_FILE = 10


def some_samples() -> tuple[np.ndarray, np.ndarray]:
    images = np.random.default_rng(1).integers(0, 256, (COUNT, *IMAGE_SHAPE), dtype=np.uint8)
    labels = np.arange(COUNT) % 10
    return images, labels


def in_memory(folder: Path) -> Samples:
    return MemorySamples(*some_samples())


def in_files(folder: Path) -> RecordFiles:
    images, labels = some_samples()
    records = pack(images, labels)
    paths = []
    for start in range(0, COUNT, PER_FILE):
        paths.append(folder / f"{start}.bin")
        paths[-1].write_bytes(records[start : start + PER_FILE].tobytes())
    return RecordFiles(paths, PER_FILE, COUNT)


@pytest.fixture(params=[in_memory, in_files], ids=["memory", "files"])
def samples(request: pytest.FixtureRequest, tmp_path: Path) -> Samples:
    make: Callable[[Path], Samples] = request.param
    return make(tmp_path)


class TestAnySamples:
    @pytest.mark.parametrize("wanted", [[0], [22, 0, 13], [5, 5, 5], list(range(COUNT)), []])
    def test_samples_come_in_the_order_asked_for(self, samples, wanted):
        images, labels = samples.take(np.array(wanted, dtype=np.int64))
        expected_images, expected_labels = some_samples()
        assert len(samples) == COUNT
        assert (images.dtype, images.shape) == (np.uint8, (len(wanted), *IMAGE_SHAPE))
        assert (labels.dtype, labels.shape) == (np.int64, (len(wanted),))
        assert images.flags.c_contiguous
        assert np.array_equal(images, expected_images[wanted])
        assert np.array_equal(labels, expected_labels[wanted])

    def test_what_the_caller_does_to_a_batch_does_not_come_back(self, samples):
        images, labels = samples.take(np.array([4, 7]))
        before = images.copy(), labels.copy()
        images[:] = 0
        labels[:] = 0
        again = samples.take(np.array([4, 7]))
        assert np.array_equal(again[0], before[0])
        assert np.array_equal(again[1], before[1])

    def test_a_pickled_copy_gives_the_same_samples(self, samples):
        samples.take(np.array([0]))
        copy = pickle.loads(pickle.dumps(samples))
        assert np.array_equal(copy.take(np.array([12]))[0], samples.take(np.array([12]))[0])


class TestRecordFiles:
    def test_a_cut_off_file_is_named_with_the_record(self, tmp_path):
        samples = in_files(tmp_path)
        os.truncate(samples.paths[1], 4 * RECORD_BYTES + 100)
        samples.take(np.array([13]))
        with pytest.raises(DataError, match=r"10\.bin ends inside record 4: .* found 100"):
            samples.take(np.array([14]))
        with pytest.raises(DataError, match=r"record 5: .* found 0"):
            samples.take(np.array([15]))

    @pytest.mark.parametrize("there", ["nothing", "folder"])
    def test_a_file_that_cannot_be_read_is_named(self, tmp_path, there):
        samples = in_files(tmp_path)
        samples.paths[2].unlink()
        if there == "folder":
            samples.paths[2].mkdir()
        with pytest.raises(DataError, match=r"cannot read record 1 of .*20\.bin: "):
            samples.take(np.array([21]))

    def test_files_are_opened_when_first_needed_and_closed(self, tmp_path):
        samples = in_files(tmp_path)
        before = open_descriptors()
        samples.take(np.array([0, 1, 2]))
        assert open_descriptors() == before + 1
        assert pickle.loads(pickle.dumps(samples))._descriptors == {}
        del samples
        assert open_descriptors() == before

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of threads, none of ours
    def test_it_survives_a_real_fork(self, tmp_path):
        samples = in_files(tmp_path)
        samples.take(np.array([0]))
        child = os.fork()
        if child == 0:
            right = False
            try:
                right = np.array_equal(samples.take(np.array([0]))[0], some_samples()[0][[0]])
            finally:  # the child must never get back to the tests
                os._exit(0 if right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert np.array_equal(samples.take(np.array([0]))[0], some_samples()[0][[0]])


def open_descriptors() -> int:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("this system does not list a process's descriptors in /proc")
    return len(list(folder.iterdir()))


class TestSamplesTaken:
    @pytest.mark.parametrize(
        ("samples", "train", "test"),
        [
            (None, 50_000, 10_000),
            (50_000, 50_000, 10_000),
            (1_000, 1_000, 200),
            (4, 4, 1),
            (1, 1, 1),
        ],
    )
    def test_a_fifth_as_many_test_samples_are_taken(self, samples, train, test):
        assert samples_taken("train", samples, 50_000, 10_000) == train
        assert samples_taken("test", samples, 50_000, 10_000) == test
        assert samples_taken("test", samples, 50_000, 7) == min(test, 7), "no more than there are"

    @pytest.mark.parametrize("samples", [0, -3, 50_001])
    @pytest.mark.parametrize("split", ["train", "test"])
    def test_what_cannot_be_had_is_refused(self, samples, split):
        with pytest.raises(RequestError, match=f"wanted {samples:,} samples; .* has 50,000"):
            samples_taken(split, samples, 50_000, 10_000)  # type: ignore[arg-type]


class TestRecords:
    @settings(deadline=None)
    @given(
        hnp.arrays(np.uint8, st.tuples(st.integers(0, 4), *map(st.just, IMAGE_SHAPE))),
        st.data(),
    )
    def test_packing_and_unpacking_come_back_to_the_same(self, images, data):
        labels = data.draw(hnp.arrays(np.int64, len(images), elements=st.integers(0, 255)))
        records = pack(images, labels)
        assert records.nbytes == len(images) * RECORD_BYTES
        again, label_again = unpack(records)
        assert np.array_equal(again, images)
        assert np.array_equal(label_again, labels)

    @settings(deadline=None)
    @given(st.binary(max_size=3 * RECORD_BYTES))
    def test_any_other_bytes_are_reported_as_wrong(self, content):
        found = inspect(content, RecordFile("x.bin", 1, "0" * 32), 10)
        assert found["status"] != "ok"
        assert found["detail"]
