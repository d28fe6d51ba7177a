"""Measure the private memory of a loader worker that makes a few batches.

A forked worker shares the memory of the training process. Its private memory is the pages that
either process has written since, and the memory to make a batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from stepscope.data.dataset import DataSet, DataSource, Records
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
    """Make a batch, and return the private memory of the process."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getitem__(self, key: BatchKey) -> int:
        batch = self._batches[key]
        size = private_bytes()
        del batch
        return size


def _blank(spec: RunSpec, dataset: DataSet, records: Records, reading: DataSource) -> Batches:
    """Return batches of blank images, so that no data need be read."""
    samples = MemorySamples(
        np.zeros((spec.batch_size, *dataset.shape), dtype=np.uint8),
        np.zeros(spec.batch_size, dtype=np.int64),
    )
    return RecordBatches(samples, reading.pipeline, records.mean, records.std, reading.augment_seed)


def worker_bytes(spec: RunSpec, dataset: DataSet) -> int:
    """Start a worker for batches like the run's, and return its private memory."""
    reading = data_source_of(spec, training=True)
    if dataset.records is None:
        batches = dataset.open("train", reading).batches
    else:
        batches = _blank(spec, dataset, dataset.records, reading)
    order = EpochOrder(spec.batch_size, spec.batch_size, spec.seed, "none")
    loader: Any = make_loader(
        _Weighed(batches),
        list(order) * _BATCHES,
        workers=1,
        prefetch=1,
        on_worker_start=start_worker,
    )
    sizes: list[int] = list(loader)
    return max(sizes)
