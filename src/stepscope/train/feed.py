"""What feeds a training: the batches of a split, from wherever its spec wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from stepscope.data import catalogue
from stepscope.data.bucket import FromBucket
from stepscope.data.crew import Crew
from stepscope.data.delays import DelayedDataset
from stepscope.data.enduring import EnduringLoader, Remaining
from stepscope.data.held_out import hold_out
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
    return Split(loader, order, timed, opened.files, opened.bucket)


def held_out_split(
    spec: RunSpec,
    train: Split,
    crew: Crew,
    tell: Callable[[Notice], None] = lambda notice: None,
) -> Split:
    """Make batches of the held-out samples, as they are, from what the training split has opened.

    Files and bucket are the training split's, and stay with it.
    """
    assert train.order.chosen is not None, "some samples are held out"
    held = ~train.order.chosen
    order = EpochOrder(
        spec.validation, spec.batch_size, spec.seed, "none", chosen=held, augment=False
    )
    return Split(
        _loader(spec, "validation", train.dataset, order, crew, tell), order, train.dataset
    )


def _loader(
    spec: RunSpec,
    split: str,
    timed: TimedDataset,
    order: EpochOrder,
    crew: Crew,
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

    return NoticingLoader(EnduringLoader(split, order, make, crew), tell)


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
    samples = dataset.count(split, spec.samples) - spec.validation
    order = EpochOrder(samples, spec.batch_size, spec.seed, "none")
    return Split(DirectLoader(timed, order), order, timed)


def _pins_memory(spec: RunSpec) -> bool:
    return spec.pin_memory and torch.device(spec.device).type == "cuda"


def plan(
    spec: RunSpec, train: Split, *, judged_on: Literal["test", "validation"] | None
) -> list[Stage]:
    """Lay out a run over the batches that feed it."""
    return plan_stages(
        spec.epochs,
        -(-len(train.order) // spec.accumulate),
        spec.max_steps,
        judged_on=judged_on,
        at_end_only=judged_on == "test" and spec.test_at == "end",
    )
