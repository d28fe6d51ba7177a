"""Data sets of records: how their batches are made, wherever the records lie."""

from __future__ import annotations

from types import ModuleType

from stepscope.data.data_set import DataSet, Opened, Records
from stepscope.data.reading import Reading
from stepscope.data.samples import RecordFiles, Samples, Split


def record_set(module: ModuleType) -> DataSet:
    """Describe the data set of a module with the constants and functions of one of records."""
    records = Records(module.load, module.open_files, module.MEAN, module.STD)

    def open_split(split: Split, reading: Reading) -> Opened:
        return open_records(records, split, reading)

    return DataSet(
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


def open_records(records: Records, split: Split, reading: Reading) -> Opened:
    """Make the batches of a split, from records in memory or in files."""
    from stepscope.data.pipelines import BatchedDataset

    samples: Samples
    if reading.source == "local":
        samples = records.open_files(split, reading.data_dir, reading.samples)
    else:
        samples = records.load(split, reading.data_dir, reading.samples)
    batches = BatchedDataset(
        samples, reading.pipeline, records.mean, records.std, reading.augment_seed
    )
    files = samples.paths if isinstance(samples, RecordFiles) else ()
    return Opened(batches, len(samples), files)
