"""Batches of records, in memory, in files or in an object store: crop, flip, normalise.

Two pipelines make identical batches: `batch` works on whole arrays, `sample` image by image.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, default_collate

from stepscope.data.dataset import Channels, DataSet, DataSource, Opened, Pipeline, Split
from stepscope.data.image_transforms import PADDING, crop_and_flip, moves, scale_and_shift
from stepscope.data.loaders.dataloader import Batch
from stepscope.data.object_store.store_url import is_store_url
from stepscope.data.sample_order import BatchKey, random_bits
from stepscope.data.samples import RecordFiles, Samples


def open_records(described: DataSet, split: Split, reading: DataSource) -> Opened:
    """Open a split of a data set of records."""
    records = described.records
    assert records is not None, "it is a data set of records"
    samples: Samples
    bucket = None
    if is_store_url(reading.source):
        from stepscope.data.object_store.bucket import open_split

        bucket = open_split(described.name, split, described.count(split, reading.samples), reading)
        samples = bucket.samples
    elif reading.source == "local":
        samples = records.open_files(split, reading.data_dir, reading.samples)
    else:
        samples = records.load(split, reading.data_dir, reading.samples)
    batches = RecordBatches(
        samples, reading.pipeline, records.mean, records.std, reading.augment_seed
    )
    files = samples.paths if isinstance(samples, RecordFiles) else ()
    return Opened(batches, len(samples), files, bucket)


class RecordBatches(Dataset[Batch]):
    """The batch of each `BatchKey`: normalised float32 images and int64 labels."""

    def __init__(
        self,
        samples: Samples,
        pipeline: Pipeline,
        mean: Channels,
        std: Channels,
        augment_seed: int | None,
    ) -> None:
        self._samples = samples
        self._pipeline = pipeline
        scale, shift = scale_and_shift(mean, std)
        self._scale, self._shift = scale[:, None, None], shift[:, None, None]
        self._augment_seed = augment_seed

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, key: BatchKey) -> Batch:
        if self._pipeline == "sample":
            made, classes = default_collate([self._one(key, index) for index in key.indices])
            return made, classes
        images, labels = self._samples.take(key.indices)
        if self._augment_seed is not None and key.augment:
            images = crop_and_flip(
                images, *moves(random_bits(self._augment_seed, key.epoch, key.indices))
            )
        # numpy, not torch: arrays this small do not gain from torch's threads, and waiting for the
        # slowest thread of a busy machine took 8 ms instead of 0.1.
        floats = images.astype(np.float32)
        floats *= self._scale
        floats += self._shift
        return torch.from_numpy(floats), torch.from_numpy(labels)

    def _one(self, key: BatchKey, index: np.int64) -> tuple[npt.NDArray[np.float32], int]:
        wanted = np.array([index])
        images, labels = self._samples.take(wanted)
        image = images[0]
        if self._augment_seed is not None and key.augment:
            down, right, flip = moves(random_bits(self._augment_seed, key.epoch, wanted))
            height, width = image.shape[1:]
            padded = np.pad(image, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
            image = padded[:, down[0] : down[0] + height, right[0] : right[0] + width]
            if flip[0]:
                image = image[:, :, ::-1]
        return image.astype(np.float32) * self._scale + self._shift, int(labels[0])
