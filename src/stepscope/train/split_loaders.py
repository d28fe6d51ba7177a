"""What feeds a training: the batches of a split, from wherever its spec wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from stepscope.data import dataset_registry
from stepscope.data.data_source import DataSource
from stepscope.data.datasets.synthetic import DirectLoader, SyntheticBatches
from stepscope.data.loaders.artificial_delay import DelayedDataset
from stepscope.data.loaders.batch_notices import Notice, Noticed
from stepscope.data.loaders.dataloader import make_loader
from stepscope.data.loaders.worker_pool import WorkerPool
from stepscope.data.loaders.worker_recovery import RecoveringLoader, Remaining
from stepscope.data.object_store.bucket import FromBucket
from stepscope.data.object_store.download import DownloadProgress
from stepscope.data.object_store.request_latency import summarize
from stepscope.data.sample_order import EpochOrder
from stepscope.data.samples import Split
from stepscope.data.validation_split import hold_out
from stepscope.meter.batch_timing import TimedDataset
from stepscope.meter.clock import now_ns, seconds
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_folder import RunFolder
from stepscope.settings import RunSpec
from stepscope.train.epoch_plan import Stage, plan_stages
from stepscope.train.recorder import RunMessages
from stepscope.train.source_settings import data_source_of
from stepscope.train.stop_request import StopRequest, start_worker

# --- A loader that tells what was noticed while its batches were made, and hands on the batches.


class NoticingLoader:
    """Take the notices off the batches of a loader, and tell each of them once."""

    def __init__(self, loader: RecoveringLoader, tell: Callable[[Notice], None]) -> None:
        self._loader, self._tell = loader, tell
        self._told: set[Notice] = set()

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. Workers start now, not at the first batch."""
        return map(self._hand_on, iter(self._loader))  # keeps no batch while the loop computes

    def close(self) -> None:
        """End the workers."""
        self._loader.close()

    def _hand_on(self, loaded: Any) -> Any:
        made, timing = loaded
        if not isinstance(made, Noticed):
            return loaded
        for notice in made.notices:
            if notice not in self._told:
                self._told.add(notice)
                self._tell(notice)
        return made.batch, timing


class Loader(Protocol):
    """Something that gives the batches of an epoch, each with the time it took to make."""

    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> None:
        """End whatever makes the batches."""


@dataclass(frozen=True)
class LoadedSplit:
    """The batches of one split, the order they come in, and the files they are read from."""

    loader: Loader
    order: EpochOrder
    dataset: TimedDataset
    files: tuple[Path, ...] = ()
    bucket: FromBucket | None = None


def open_split(
    spec: RunSpec,
    split: dataset_registry.Split,
    data_dir: Path,
    crew: WorkerPool,
    tell: Callable[[Notice], None] = lambda notice: None,
    hear: Callable[[DataSource], DataSource] = lambda reading: reading,
) -> LoadedSplit:
    """Make the batches of a split ready to be asked for.

    `crew` are the workers that make them; `tell` hears what they notice in the making, and `hear`
    puts into a reading who is told of an object store.
    """
    if spec.source == "synthetic":
        return _synthetic(spec, split, data_dir)
    training = split == "train"
    reading = hear(data_source_of(spec, data_dir, training=training))
    opened = dataset_registry.find(spec.data, reading).open(split, reading)
    batches: Dataset[Any] = opened.batches
    delay_ms = spec.pipeline_delay_ms + spec.source_delay_ms
    if delay_ms:
        batches = DelayedDataset(batches, delay_ms / 1000)
    held = hold_out(opened.samples, spec.validation) if training else None
    order = EpochOrder(
        opened.samples - (spec.validation if training else 0),
        spec.batch_size,
        spec.seed,
        spec.shuffle if training else "none",
        chosen=None if held is None else ~held,
    )
    timed = TimedDataset(batches)
    loader = _loader(spec, split, timed, order, crew, tell)
    return LoadedSplit(loader, order, timed, opened.files, opened.bucket)


def held_out_split(
    spec: RunSpec,
    train: LoadedSplit,
    crew: WorkerPool,
    tell: Callable[[Notice], None] = lambda notice: None,
) -> LoadedSplit:
    """Make batches of the held-out samples, as they are, from what the training split has opened.

    Files and bucket are the training split's, and stay with it.
    """
    assert train.order.chosen is not None, "some samples are held out"
    held = ~train.order.chosen
    order = EpochOrder(
        spec.validation, spec.batch_size, spec.seed, "none", chosen=held, augment=False
    )
    return LoadedSplit(
        _loader(spec, "validation", train.dataset, order, crew, tell), order, train.dataset
    )


def _loader(
    spec: RunSpec,
    split: str,
    timed: TimedDataset,
    order: EpochOrder,
    crew: WorkerPool,
    tell: Callable[[Notice], None],
) -> Loader:
    def make(workers: int, keys: Remaining) -> DataLoader[Any]:
        return make_loader(
            timed,
            keys,
            workers=workers,
            prefetch=spec.prefetch,
            persistent_workers=spec.persistent_workers,
            pin_memory=_pins_memory(spec),
            on_worker_start=start_worker,
        )

    return NoticingLoader(RecoveringLoader(split, order, make, crew), tell)


def _synthetic(spec: RunSpec, split: dataset_registry.Split, data_dir: Path) -> LoadedSplit:
    dataset = dataset_registry.find(spec.data, data_source_of(spec, data_dir))
    timed = TimedDataset(
        SyntheticBatches(
            dataset.blank(spec.batch_size),
            dataset.classes,
            spec.seed,
            pin_memory=_pins_memory(spec),
        )
    )
    # The order is of no matter, and to draw one would be work that a loader does.
    samples = dataset.count(split, spec.samples) - spec.validation
    order = EpochOrder(samples, spec.batch_size, spec.seed, "none")
    return LoadedSplit(DirectLoader(timed, order), order, timed)


def _pins_memory(spec: RunSpec) -> bool:
    return spec.pin_memory and torch.device(spec.device).type == "cuda"


def plan(
    spec: RunSpec, train: LoadedSplit, *, judged_on: Literal["test", "validation"] | None
) -> list[Stage]:
    """Lay out a run over the batches that feed it."""
    return plan_stages(
        spec.epochs,
        -(-len(train.order) // spec.accumulate),
        spec.max_steps,
        judged_on=judged_on,
        at_end_only=judged_on == "test" and spec.test_at == "end",
    )


# --- What a training tells of an object store: retried requests, a download's progress and its
# row.


PROGRESS_EVERY_S = 0.5

# Row types of the published record format (docs/run-folder.md).
_ROW_TYPES: dict[Split, int] = {"train": 10, "test": 11}


@dataclass(frozen=True)
class RunJournal:
    """Write events into a run's folder, from whatever process has them."""

    folder: Path
    origin_ns: int

    def __call__(self, event: str, detail: Mapping[str, Any]) -> None:
        """Append an event, timed from the run's origin."""
        RunFolder(self.folder).add_event(event, seconds(now_ns() - self.origin_ns), **detail)


def told_of(
    reading: DataSource, telling: RunMessages | None, stop: StopRequest | None
) -> DataSource:
    """Let a run hear what reading its data meets; a request to stop ends a download."""
    if telling is None:
        return reading
    told_at = -PROGRESS_EVERY_S

    def report(split: Split, progress: DownloadProgress) -> None:
        nonlocal told_at
        if stop is not None:
            stop.check()
        whole = progress.done_bytes == progress.total_bytes
        if whole or monotonic() - told_at >= PROGRESS_EVERY_S:
            told_at = monotonic()
            telling.send(
                {
                    "type": "download",
                    "split": split,
                    "done_bytes": progress.done_bytes,
                    "total_bytes": progress.total_bytes,
                    "left_s": progress.left_s,
                }
            )

    journal = RunJournal(telling.folder.path, telling.origin_ns)
    return replace(reading, journal=journal, report=report)


def record_downloads(folder: Path, buckets: Mapping[Split, FromBucket]) -> None:
    """Write the rows of finished downloads; a resumed run has its rows already."""
    lines = (folder / schema.RECORDS).read_text(encoding="utf-8").splitlines()
    recorded = {line.partition(",")[0] for line in lines}
    with CsvLog(folder / schema.RECORDS) as records:
        for split, bucket in buckets.items():
            done = bucket.download
            if done is not None and str(_ROW_TYPES[split]) not in recorded:
                numbers = (done.start_unix_s, done.loading_s, done.total_s, done.items, 0)
                row = ",".join(f"{number:f}" for number in numbers)
                records.append(f"{_ROW_TYPES[split]},0,{row}")


def requests_of(buckets: Iterable[FromBucket]) -> dict[str, Any] | None:
    """Return how many requests there were and how long they took; None without a bucket."""
    return summarize([bucket.requests.counts() for bucket in buckets])
