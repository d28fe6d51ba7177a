"""Data sets of records, in memory, in files or in an object store."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from stepscope.data.data_source import DataSource
from stepscope.data.dataset import DataSet, Opened, Records
from stepscope.data.object_store.store_url import is_store_url
from stepscope.data.samples import RecordFiles, Samples, Split

if TYPE_CHECKING:
    from stepscope.data.image_transforms import Batches


def record_set(module: ModuleType) -> DataSet:
    """Return the data set that a module defines with its constants and functions."""
    records = Records(module.load, module.open_files, module.MEAN, module.STD)

    def open_split(split: Split, reading: DataSource) -> Opened:
        if is_store_url(reading.source):
            return _open_bucket(described, split, reading)
        return open_records(records, split, reading)

    described = DataSet(
        name=module.NAME,
        about=module.ABOUT,
        class_names=module.CLASS_NAMES,
        train_samples=module.TRAIN_SAMPLES,
        test_samples=module.TEST_SAMPLES,
        check=module.check,
        open=open_split,
        get=module.get,
        verify=module.verify,
        records=records,
    )
    return described


def open_records(records: Records, split: Split, reading: DataSource) -> Opened:
    """Open a split, from records in memory or in files."""
    samples: Samples
    if reading.source == "local":
        samples = records.open_files(split, reading.data_dir, reading.samples)
    else:
        samples = records.load(split, reading.data_dir, reading.samples)
    files = samples.paths if isinstance(samples, RecordFiles) else ()
    return Opened(_batches(samples, records, reading), len(samples), files)


def _open_bucket(described: DataSet, split: Split, reading: DataSource) -> Opened:
    """Open a split in an object store."""
    from stepscope.data.object_store.bucket import open_split

    assert described.records is not None, "it is a data set of records"
    stored = open_split(described.name, split, described.count(split, reading.samples), reading)
    batches = _batches(stored.samples, described.records, reading)
    return Opened(batches, len(stored.samples), bucket=stored)


def _batches(samples: Samples, records: Records, reading: DataSource) -> Batches:
    from stepscope.data.image_transforms import BatchedDataset

    return BatchedDataset(
        samples, reading.pipeline, records.mean, records.std, reading.augment_seed
    )
