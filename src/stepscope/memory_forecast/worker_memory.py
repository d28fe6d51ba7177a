"""Measure the private memory of a loader worker that makes a few batches.

A forked worker shares the memory of the training process. Its private memory is the pages that
either process has written since, and the memory to make a batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch.utils.data import Dataset

from stepscope.data.dataset import DataSet
from stepscope.data.loaders.dataloader import Batches, make_loader
from stepscope.data.record_dataset import RecordBatches
from stepscope.data.sample_order import BatchKey, EpochOrder
from stepscope.data.samples import MemorySamples
from stepscope.hardware.process_memory import private_bytes
from stepscope.settings import RunSpec
from stepscope.train.source_settings import data_source_of
from stepscope.train.split_loaders import start_worker

_BATCHES = 3


class _Weighed(Dataset[int]):
    """Make a batch and return the private memory of the process."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getitem__(self, key: BatchKey) -> int:
        batch = self._batches[key]
        size = private_bytes()
        del batch
        return size


def worker_bytes(spec: RunSpec, dataset: DataSet) -> int:
    """Start a worker for batches like the run's, and return its private memory."""
    reading = data_source_of(spec, training=True)
    if dataset.open_batches is not None:
        batches = dataset.open_batches("train", reading).batches
    else:
        assert dataset.records is not None, "it is a data set of records"
        blank = MemorySamples(  # so that no data need be read
            np.zeros((spec.batch_size, *dataset.shape), dtype=np.uint8),
            np.zeros(spec.batch_size, dtype=np.int64),
        )
        records = dataset.records
        batches = RecordBatches(
            blank, reading.pipeline, records.mean, records.std, reading.augment_seed
        )
    order = EpochOrder(spec.batch_size, spec.batch_size, spec.seed, "none")
    loader: Iterable[int] = make_loader(
        _Weighed(batches),
        list(order) * _BATCHES,
        workers=1,
        prefetch=1,
        on_worker_start=start_worker,
    )
    return max(loader)
