"""Turn stored bytes into batches: crop, flip, normalise.

Two pipelines make identical batches. `batch` works on whole arrays; `sample` processes image by
image and stacks the results, as most published scripts do. Crop and flip of a sample come from
`sample_order.chance`, so they do not depend on the worker that makes the batch.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, default_collate

from stepscope.data.sample_order import BatchKey, chance
from stepscope.data.samples import Samples

PADDING = 4
_OFFSETS = 2 * PADDING + 1

Bytes = npt.NDArray[np.uint8]
Batch = tuple[torch.Tensor, torch.Tensor]
Batches = Dataset[Batch]  # by key


class BatchedDataset(Dataset[Batch]):
    """The batch of each `BatchKey`: normalised float32 images and int64 labels."""

    def __init__(
        self,
        samples: Samples,
        pipeline: Literal["batch", "sample"],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        augment_seed: int | None,
    ) -> None:
        self._samples = samples
        self._make = self._whole_batch if pipeline == "batch" else self._image_by_image
        # (pixel / 255 - mean) / std, as one multiplication and one addition
        self._scale = (1 / (255 * np.array(std))).astype(np.float32)[:, None, None]
        self._shift = (-np.array(mean) / np.array(std)).astype(np.float32)[:, None, None]
        self._augment_seed = augment_seed

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, key: BatchKey) -> Batch:
        return self._make(key)

    def _whole_batch(self, key: BatchKey) -> Batch:
        images, labels = self._samples.take(key.indices)
        if self._augment_seed is not None and key.augment:
            images = crop_and_flip(
                images, *_moves(chance(self._augment_seed, key.epoch, key.indices))
            )
        # numpy, not torch: arrays this small do not gain from torch's threads, and waiting for the
        # slowest thread of a busy machine took 8 ms instead of 0.1.
        floats = images.astype(np.float32)
        floats *= self._scale
        floats += self._shift
        return torch.from_numpy(floats), torch.from_numpy(labels)

    def _image_by_image(self, key: BatchKey) -> Batch:
        made = [self._one(key, index) for index in key.indices]
        images, labels = default_collate(made)
        return images, labels

    def _one(self, key: BatchKey, index: np.int64) -> tuple[npt.NDArray[np.float32], int]:
        wanted = np.array([index])
        images, labels = self._samples.take(wanted)
        image = images[0]
        if self._augment_seed is not None and key.augment:
            down, right, flip = _moves(chance(self._augment_seed, key.epoch, wanted))
            height, width = image.shape[1:]
            padded = np.pad(image, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
            image = padded[:, down[0] : down[0] + height, right[0] : right[0] + width]
            if flip[0]:
                image = image[:, :, ::-1]
        return image.astype(np.float32) * self._scale + self._shift, int(labels[0])


def _moves(
    bits: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the offsets down and right, and whether to flip, from random bits."""
    places = _OFFSETS * _OFFSETS
    place = ((bits >> np.uint64(1)) % np.uint64(places)).astype(np.intp)
    return place // _OFFSETS, place % _OFFSETS, (bits & np.uint64(1)).astype(np.bool_)


def crop_and_flip(
    images: Bytes,
    down: npt.NDArray[np.intp],
    right: npt.NDArray[np.intp],
    flip: npt.NDArray[np.bool_],
) -> Bytes:
    """Zero-pad each image, crop it at its offset, and flip it if asked."""
    count, channels, height, width = images.shape
    padded = np.zeros((count, channels, height + 2 * PADDING, width + 2 * PADDING), dtype=np.uint8)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    # Advanced indices on either side of a slice put the samples first: [count, channels, h, w].
    cut = windows[np.arange(count), :, down, right]
    cut[flip] = cut[flip, :, :, ::-1]
    return np.ascontiguousarray(cut)
