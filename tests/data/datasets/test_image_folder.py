"""Image folders in the ImageNet layout: what they hold, and the batches made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import encoded, make_folder, picture

from stepscope.data import dataset_registry
from stepscope.data.dataset import DataSource
from stepscope.data.datasets.image_folder import describe
from stepscope.data.image_batches import MEAN, STD
from stepscope.data.loaders.dataloader import Noticed
from stepscope.data.sample_order import BatchKey, hold_out
from stepscope.errors import DataError, RequestError

SIZE = (3, 24, 32)


@pytest.fixture
def reading(tmp_path: Path) -> DataSource:
    return DataSource(make_folder(tmp_path / "photos"), source="local", shape=SIZE)


def batch_of(
    reading: DataSource, *indices: int, epoch: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    made = (
        describe(reading).open_batches("train", reading).batches[BatchKey(epoch, np.array(indices))]
    )
    return made.batch if isinstance(made, Noticed) else made


class TestWhatAFolderIs:
    def test_it_is_described_by_what_lies_there(self, reading):
        found = dataset_registry.find("folder", reading)
        assert found.class_names == ("class0", "class1", "class2")
        assert (found.train_samples, found.test_samples) == (12, 6)
        assert found.shape == SIZE
        assert found.blank(2).shape == (2, *SIZE)

    def test_images_are_brought_to_224_where_nothing_else_is_said(self, reading):
        assert describe(replace(reading, shape=None)).shape == (3, 224, 224)

    def test_the_first_samples_are_of_all_classes(self, reading):
        _, labels = batch_of(replace(reading, samples=6), 0, 1, 2, 3, 4, 5)
        assert labels.tolist() == [0, 1, 2, 0, 1, 2]
        opened = describe(reading).open_batches("train", replace(reading, samples=6))
        assert opened.samples == len(opened.files) == 6
        assert opened.files[4].parts[-2:] == ("class1", "001.JPEG")

    def test_images_that_are_added_are_seen(self, reading):
        assert describe(reading).train_samples == 12
        (reading.data_dir / "train" / "class2" / "late.png").write_bytes(encoded(picture(), "PNG"))
        assert describe(reading).train_samples == 13

    def test_what_is_no_image_by_its_name_is_left_out(self, reading):
        folder = reading.data_dir / "train" / "class0"
        for name in ("notes.txt", "._001.JPEG", "Thumbs.db", "jpeg"):
            (folder / name).write_text("no image")
        (folder / "more").mkdir()
        (folder / "more" / "deep.jpg").write_bytes(encoded(picture()))
        assert describe(reading).train_samples == 13

    def test_odd_names_of_classes_and_files_do_no_harm(self, reading):
        odd = reading.data_dir / "train" / "<script>alert(1)<\nscript>"
        odd.mkdir()
        for name in (b"line\nbreak.jpg", b"not utf-8 \xff.jpg", b"<b>.jpg"):
            with open(bytes(odd) + b"/" + name, "wb") as file:  # noqa: PTH123 - bytes have no Path
                file.write(encoded(picture()))
        found = describe(reading)
        assert found.class_names[0] == odd.name
        images, labels = batch_of(reading, *range(found.train_samples))
        assert images.isfinite().all()
        assert sorted(labels.tolist()).count(0) == 3

    def test_it_holds_the_files_as_they_are_in_memory(self, reading):
        held = describe(reading).held_bytes
        assert held is not None
        files = sorted((reading.data_dir / "val").rglob("*.JPEG"))
        assert held("test", None) == sum(file.stat().st_size for file in files)


CATS = "train/cats/1.jpg"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], r"photos is not a folder\. Pass the folder that has `train`"),
        (["/"], r"wanted a folder for each class in .*train, .*photos has nothing in it"),
        (["training/cats/"], r"photos has 'training'\. Pass the folder that has"),
        (["train/cat.jpg"], r"found 'cat.jpg' and no folder"),
        ([CATS, "train/cows\n/"], r"class 'cows\\n' has no images: .* has nothing in it"),
        ([CATS, "train/cows\n/list.txt"], r"'cows\\n' has no images: .* has 'list.txt'\. Wanted"),
        ([CATS, "val/cows/1.jpg"], r"val has classes without training images in .*: 'cows'"),
    ],
)
def test_a_folder_of_another_layout_is_refused_with_what_was_found(tmp_path, paths, message):
    for path in paths:
        folder, _, file = f"{tmp_path}/photos/{path}".rpartition("/")
        Path(folder).mkdir(parents=True)
        if file:
            (Path(folder) / file).touch()
    with pytest.raises(DataError, match=message) as refused:
        describe(DataSource(tmp_path / "photos"))
    assert "\n" not in str(refused.value)


def test_without_val_there_is_nothing_to_test_on_and_training_is_still_possible(tmp_path):
    reading = DataSource(make_folder(tmp_path, val=0), shape=SIZE)
    for folder in (tmp_path / "val").iterdir():
        folder.rmdir()
    assert describe(reading).test_samples == 0
    assert describe(reading).open_batches("train", reading).samples == 12
    with pytest.raises(DataError, match=r"wanted test images .* --no-evaluate"):
        describe(reading).open_batches("test", reading)


def test_other_data_sets_cannot_be_brought_to_a_size():
    with pytest.raises(RequestError, match=r"samples of shapes are 3,32,32, found 3,64,64"):
        dataset_registry.find("shapes", DataSource(shape=(3, 64, 64)))
    assert dataset_registry.find("shapes", DataSource(shape=(3, 32, 32))).shape == (3, 32, 32)


def test_a_network_is_shown_three_channels(reading):
    with pytest.raises(RequestError, match="wanted three channels"):
        describe(replace(reading, shape=(1, 24, 24)))


def test_a_folder_in_an_object_store_is_refused(reading):
    with pytest.raises(RequestError, match=r"read from local, memory, synthetic; found s3://b"):
        describe(replace(reading, source="s3://b"))


class TestBatches:
    def test_pixels_are_normalised_as_for_imagenet(self, tmp_path):
        folder = tmp_path / "train" / "white"
        folder.mkdir(parents=True)
        (folder / "1.png").write_bytes(encoded(picture().point(lambda _: 255), "PNG"))
        images, _ = batch_of(DataSource(tmp_path, shape=SIZE), 0)
        expected = (1 - torch.tensor(MEAN)) / torch.tensor(STD)
        assert torch.allclose(images, expected[None, :, None, None].expand(1, *SIZE), atol=1e-5)

    @pytest.mark.parametrize("changed", [{"source": "memory"}, {"pipeline": "sample"}])
    def test_source_and_pipeline_change_no_bit(self, reading, changed):
        training = replace(reading, augment_seed=7)
        images, labels = batch_of(training, 5, 0, 11)
        others, other_labels = batch_of(replace(training, **changed), 5, 0, 11)  # type: ignore[arg-type]
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)

    def test_a_sample_looks_the_same_in_whatever_batch_and_another_in_the_next_epoch(self, reading):
        training = replace(reading, augment_seed=7)
        images, _ = batch_of(training, 5, 0, 11)
        assert torch.equal(images[1:2], batch_of(training, 0)[0])
        assert not torch.equal(images[1:2], batch_of(training, 0, epoch=2)[0])
        assert not torch.equal(images, batch_of(replace(training, augment_seed=8), 5, 0, 11)[0])

    def test_without_augmentation_every_epoch_sees_the_middle(self, reading):
        assert torch.equal(batch_of(reading, 3)[0], batch_of(reading, 3, epoch=2)[0])

    def test_channels_lie_last_in_memory(self, reading):
        images, _ = batch_of(reading, 0, 1)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert (images.shape, images.dtype) == ((2, *SIZE), torch.float32)


class TestBrokenImages:
    @pytest.fixture(params=["local", "memory"])
    def broken(self, reading: DataSource, request: pytest.FixtureRequest) -> DataSource:
        """Break sample 1, cut sample 2 short, and let sample 3 point to nowhere."""
        train = reading.data_dir / "train"
        (train / "class1" / "000.JPEG").write_text("<html>")
        cut = train / "class2" / "000.JPEG"
        cut.write_bytes(cut.read_bytes()[:-100])
        (train / "class0" / "001.JPEG").unlink()
        (train / "class0" / "001.JPEG").symlink_to(reading.data_dir / "gone.JPEG")
        return replace(reading, source=request.param)

    def test_the_next_good_one_stands_in_and_each_is_named(self, broken):
        batches = describe(broken).open_batches("train", broken).batches
        made = batches[BatchKey(1, np.array([0, 1, 11]))]
        assert isinstance(made, Noticed)
        images, labels = made.batch
        assert labels.tolist() == [0, 1, 2]
        assert torch.equal(images[1:2], batch_of(broken, 4)[0])
        names = [Path(notice.path).parts[-2:] for notice in made.notices]
        assert names == [("class1", "000.JPEG"), ("class2", "000.JPEG"), ("class0", "001.JPEG")]
        assert {notice.event for notice in made.notices} == {"bad_sample"}
        reasons = [notice.reason for notice in made.notices]
        assert reasons[0].startswith("not a readable image")
        assert "truncated" in reasons[1]
        assert reasons[2] == "No such file or directory"

    def test_no_held_out_image_stands_in_for_one_that_is_trained_on(self, reading):
        reading = replace(reading, validation=5)
        held = hold_out(12, 5)
        assert held is not None
        files = describe(reading).open_batches("train", reading).files
        trained = np.flatnonzero(~held)
        broken = next(index for index in trained if held[(index + 1) % 12])
        files[broken].write_bytes(b"")
        [*_, stands_in] = sorted(trained, key=lambda index: -((index - broken - 1) % 12))
        assert torch.equal(batch_of(reading, int(broken))[0], batch_of(reading, int(stands_in))[0])

    def test_the_last_sample_is_followed_by_the_first(self, reading):
        describe(reading).open_batches("train", reading).files[11].write_bytes(b"")
        assert torch.equal(batch_of(reading, 11)[0], batch_of(reading, 0)[0])

    def test_a_run_that_is_to_fail_names_the_image(self, broken):
        strict = replace(broken, on_bad_sample="fail")
        assert len(batch_of(strict, 0, 4, 5)[1]) == 3
        with pytest.raises(
            DataError, match=r"class1/000\.JPEG: not a readable image.* --on-bad-sample skip"
        ):
            batch_of(strict, 0, 1)

    def test_where_none_can_be_read_the_run_ends(self, reading):
        for file in (reading.data_dir / "train").rglob("*.JPEG"):
            file.write_bytes(b"no image")
        with pytest.raises(DataError, match=r"none of the 12 images in .*train can be read"):
            batch_of(reading, 3)

    def test_verifying_decodes_every_image(self, broken):
        found = describe(broken).verify(broken.data_dir)
        assert len(found) == 18
        wrong = {each["file"]: each["status"] for each in found if each["status"] != "ok"}
        assert set(wrong.values()) == {"unreadable"}
        assert sorted(wrong) == [
            "train/class0/001.JPEG",
            "train/class1/000.JPEG",
            "train/class2/000.JPEG",
        ]


def test_nobody_can_fetch_a_folder(reading):
    with pytest.raises(RequestError, match="your own data"):
        describe(reading).get(reading.data_dir, print)
