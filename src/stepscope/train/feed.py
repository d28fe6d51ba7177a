"""What feeds a training: the batches of a split, from wherever its spec wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from stepscope.data import catalogue
from stepscope.data.bucket import FromBucket
from stepscope.data.crew import Crew
from stepscope.data.delays import DelayedDataset
from stepscope.data.enduring import EnduringLoader, Remaining
from stepscope.data.loader import make_loader
from stepscope.data.notices import Notice
from stepscope.data.order import EpochOrder
from stepscope.data.reading import Reading
from stepscope.data.synthetic import DirectLoader, SyntheticBatches
from stepscope.measure.loading import TimedDataset
from stepscope.spec import RunSpec
from stepscope.train.lifetime import start_worker
from stepscope.train.noticing import NoticingLoader
from stepscope.train.reading import reading_of
from stepscope.train.stages import Stage, plan_stages


class Loader(Protocol):
    """Something that gives the batches of an epoch, each with the time it took to make."""

    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> None:
        """End whatever makes the batches."""


@dataclass(frozen=True)
class Split:
    """The batches of one split, the order they come in, and the files they are read from."""

    loader: Loader
    order: EpochOrder
    dataset: TimedDataset
    files: tuple[Path, ...] = ()
    bucket: FromBucket | None = None


def open_split(
    spec: RunSpec,
    split: catalogue.Split,
    data_dir: Path,
    crew: Crew,
    tell: Callable[[Notice], None] = lambda notice: None,
    hear: Callable[[Reading], Reading] = lambda reading: reading,
) -> Split:
    """Make the batches of a split ready to be asked for.

    `crew` are the workers that make them; `tell` hears what they notice in the making, and `hear`
    puts into a reading who is told of an object store.
    """
    if spec.source == "synthetic":
        return _synthetic(spec, split, data_dir)
    training = split == "train"
    reading = hear(reading_of(spec, data_dir, training=training))
    opened = catalogue.find(spec.data, reading).open(split, reading)
    batches: Dataset[Any] = opened.batches
    delay_ms = spec.pipeline_delay_ms + spec.source_delay_ms
    if delay_ms:
        batches = DelayedDataset(batches, delay_ms / 1000)
    order = EpochOrder(
        opened.samples, spec.batch_size, spec.seed, spec.shuffle if training else "none"
    )
    timed = TimedDataset(batches)

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

    loader = NoticingLoader(EnduringLoader(split, order, make, crew), tell)
    return Split(loader, order, timed, opened.files, opened.bucket)


def _synthetic(spec: RunSpec, split: catalogue.Split, data_dir: Path) -> Split:
    dataset = catalogue.find(spec.data, reading_of(spec, data_dir))
    timed = TimedDataset(
        SyntheticBatches(
            dataset.blank(spec.batch_size),
            dataset.classes,
            spec.seed,
            pin_memory=_pins_memory(spec),
        )
    )
    # The order is of no matter, and to draw one would be work that a loader does.
    order = EpochOrder(dataset.count(split, spec.samples), spec.batch_size, spec.seed, "none")
    return Split(DirectLoader(timed, order), order, timed)


def _pins_memory(spec: RunSpec) -> bool:
    return spec.pin_memory and torch.device(spec.device).type == "cuda"


def plan(spec: RunSpec, train: Split, *, evaluate: bool) -> list[Stage]:
    """Lay out a run over the batches that feed it."""
    steps_per_epoch = -(-len(train.order) // spec.accumulate)
    return plan_stages(spec.epochs, steps_per_epoch, spec.max_steps, evaluate=evaluate)
