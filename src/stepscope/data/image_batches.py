"""Batches of images that are decoded on demand.

An image that cannot be read is replaced by the next readable one in the listing, which depends on
the broken image alone. A held-out image never replaces a training image, nor the reverse.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from stepscope.data.dataset import DataSource
from stepscope.data.image_decode import Pixels, UnreadableImage, decode
from stepscope.data.image_index import Listing, PackedBytes, shown
from stepscope.data.image_transforms import draws, flips, middle_box, random_box, scale_and_shift
from stepscope.data.loaders.dataloader import Batch, Notice, Noticed
from stepscope.data.sample_order import BatchKey, Mask, random_bits
from stepscope.errors import DataError

BAD_SAMPLE = "bad_sample"

# Of ImageNet's training pixels divided by 255, as used by published networks.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class FilesInMemory:
    """Image files, still compressed, in one block of memory."""

    def __init__(self, listing: Listing) -> None:
        self._unread: dict[int, OSError] = {}
        self._files = PackedBytes(self._read(listing, index) for index in range(len(listing)))

    def _read(self, listing: Listing, index: int) -> bytes:
        try:
            return listing.read(index)
        except OSError as error:
            self._unread[index] = error
            return b""

    def read(self, index: int) -> bytes:
        """Copy a file out of the block."""
        if index in self._unread:
            raise self._unread[index]
        return self._files[index]


class ImageBatches(Dataset[Any]):
    """The batch of each `BatchKey`, with notices about images that could not be read."""

    def __init__(
        self,
        listing: Listing,
        files: Listing | FilesInMemory,
        reading: DataSource,
        size: tuple[int, int],
        held_out: Mask | None = None,
    ) -> None:
        """Read the images of a listing from `files`, and resize them to `size` (height, width)."""
        self._held_out = held_out
        self._listing, self._files, self._size = listing, files, size
        # Not the data source itself, which cannot be pickled.
        self._augment_seed, self._on_bad_sample = reading.augment_seed, reading.on_bad_sample
        self._pipeline = reading.pipeline
        # For a whole row of pixels at a time: numpy is slow if the last axis has three values.
        scale, shift = scale_and_shift(MEAN, STD)
        self._scale, self._shift = np.tile(scale, size[1]), np.tile(shift, size[1])

    def __len__(self) -> int:
        return len(self._listing)

    def __getitem__(self, key: BatchKey) -> Batch | Noticed:
        images = np.empty((len(key.indices), *self._size, 3), dtype=np.uint8)
        labels = np.empty(len(key.indices), dtype=np.int64)
        seed = self._augment_seed if key.augment else None
        drawn = None if seed is None else draws(random_bits(seed, key.epoch, key.indices)).tolist()
        notices: list[Notice] = []
        for row, index in enumerate(key.indices.tolist()):
            pixels, taken, more = self._image(index, None if drawn is None else drawn[row])
            images[row], labels[row] = pixels, self._listing.labels[taken]
            notices += more
        batch = self._normalised(images), torch.from_numpy(labels)
        return Noticed(batch, tuple(notices)) if notices else batch

    def _image(self, index: int, drawn: list[float] | None) -> tuple[Pixels, int, list[Notice]]:
        """Return an image or the next readable one, its index, and notices of the others."""
        notices: list[Notice] = []
        if drawn is None:
            choose = partial(middle_box, size=self._size)
        else:
            choose = partial(random_box, drawn=drawn)
        for taken in chain(range(index, len(self)), range(index)):
            if self._held_out is not None and self._held_out[taken] != self._held_out[index]:
                continue
            try:
                pixels = decode(self._files.read(taken), choose, self._size)
            except (OSError, UnreadableImage) as error:
                notices.append(self._notice(taken, error))
                continue
            flipped = drawn is not None and flips(drawn)
            return pixels[:, ::-1] if flipped else pixels, taken, notices
        raise DataError(
            f"none of the {len(self):,} images in {shown(self._listing.root)} can be read: "
            f"{notices[0].reason} ({shown(notices[0].path)}), for example."
        )

    def _notice(self, index: int, error: Exception) -> Notice:
        path = self._listing.path(index)
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if self._on_bad_sample == "fail":
            raise DataError(
                f"cannot read the image {shown(path)}: {shown(reason)}. Replace or remove it, or "
                "use --on-bad-sample skip."
            ) from error
        return Notice(BAD_SAMPLE, str(path), reason)

    def _normalised(self, images: Pixels) -> torch.Tensor:
        """Return float32 images [n, 3, height, width]; `batch` leaves them channels-last."""
        if self._pipeline == "sample":
            return torch.stack([_channels_first(self._floats(image)) for image in images])
        return _channels_first(self._floats(images))

    def _floats(self, images: Pixels) -> npt.NDArray[np.float32]:
        rows = images.reshape(*images.shape[:-2], -1).astype(np.float32)
        rows *= self._scale
        rows += self._shift
        return rows.reshape(images.shape)


def _channels_first(images: npt.NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(images).movedim(-1, -3)
