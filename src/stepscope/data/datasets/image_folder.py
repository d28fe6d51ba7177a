"""Image folders in the ImageNet layout: images of any size, one folder for each class."""

from __future__ import annotations

from pathlib import Path

from stepscope.data.dataset import DataSet, DataSource, Opened, Split, samples_taken
from stepscope.data.image_index import FolderLayout, Listing, list_images, shown
from stepscope.errors import DataError, RequestError, require_packages
from stepscope.records.types import VerifiedFile

NAME = "folder"
SHAPE = (3, 224, 224)
SOURCES = ("local", "memory", "synthetic")


def describe(reading: DataSource) -> DataSet:
    """Return the description of the folder at a data source."""
    shape = reading.shape or SHAPE
    if len(shape) != 3 or shape[0] != 3:
        found = ",".join(map(str, shape))
        raise RequestError(
            f"input: wanted three channels, a height and a width, like 3,224,224; found {found}."
        )
    if reading.source not in SOURCES:
        raise RequestError(
            f"source: an image folder is read from {', '.join(SOURCES)}; found {reading.source}."
        )
    layout = list_images(reading.data_dir)
    return DataSet(
        name=NAME,
        class_names=layout.class_names,
        train_samples=len(layout.train),
        test_samples=len(layout.test),
        # `describe` has already found the images.
        check=lambda data_dir: require_packages(
            "reading image folders", "train", "PIL", "simplejpeg"
        ),
        open_batches=_open,
        verify=_verify,
        shape=shape,
        held_bytes=lambda split, samples: _listing(layout, split, samples).size_bytes(),
    )


def _open(split: Split, reading: DataSource) -> Opened:
    from stepscope.data.image_batches import FilesInMemory, ImageBatches
    from stepscope.data.sample_order import hold_out

    listing = _listing(list_images(reading.data_dir), split, reading.samples)
    if not len(listing):
        raise DataError(
            f"wanted test images in {shown(reading.data_dir / 'val')}, in a folder for each class; "
            "found none. Add them, or train without tests: --no-evaluate."
        )
    height, width = (reading.shape or SHAPE)[1:]
    local = reading.source == "local"
    files = listing if local else FilesInMemory(listing)
    held_out = hold_out(len(listing), reading.validation) if split == "train" else None
    batches = ImageBatches(listing, files, reading, (height, width), held_out)
    return Opened(batches, len(listing), listing.paths if local else ())


def _listing(layout: FolderLayout, split: Split, samples: int | None) -> Listing:
    count = samples_taken(split, samples, len(layout.train), len(layout.test))
    return (layout.train if split == "train" else layout.test).first(count)


def _verify(data_dir: Path) -> list[VerifiedFile]:
    """Decode every image."""
    from stepscope.data.image_decode import UnreadableImage, decode
    from stepscope.data.image_transforms import Box

    def one(file: Path) -> VerifiedFile:
        name, fault = shown(file.relative_to(data_dir)), ""
        try:
            decode(file.read_bytes(), lambda height, width: Box(0, 0, height, width), (1, 1))
        except (OSError, UnreadableImage) as error:
            fault = shown(str(error.strerror if isinstance(error, OSError) else error))
        return {"file": name, "status": "unreadable" if fault else "ok", "detail": fault}

    layout = list_images(data_dir)
    return [one(path) for path in layout.train.paths + layout.test.paths]
