"""torch's DataLoader, set up to load whole batches by key, and to continue when its workers die.

Without a worker that is killed or fails to start, the loader continues from the same batch. No
batch is lost or repeated: it depends on its key alone (`data.sample_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from stepscope.data.loaders.worker_pool import LostWorker, WorkerPool
from stepscope.data.sample_order import BatchKey, EpochOrder

Batch = tuple[torch.Tensor, torch.Tensor]
Batches = Dataset[Batch]  # by key


class Notice(NamedTuple):
    """An event to report once: its kind, the path of the sample, and the reason."""

    event: str
    path: str
    reason: str


class Noticed(NamedTuple):
    """A batch with notices, which travel with it from a worker to the training process."""

    batch: Batch
    notices: tuple[Notice, ...]


def make_loader(
    dataset: Dataset[Any],
    keys: Iterable[BatchKey],
    *,
    workers: int,
    prefetch: int = 2,
    persistent_workers: bool = False,
    pin_memory: bool = False,
    on_worker_start: Callable[[int], None] | None = None,
) -> DataLoader[Any]:
    """Return a loader that yields `dataset[key]` for each of `keys`."""
    return DataLoader(
        dataset,
        batch_size=None,  # a key names a whole batch: no collation
        collate_fn=_as_it_is,  # and no conversion, which would visit every part of it
        sampler=keys,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        persistent_workers=persistent_workers and workers > 0,
        pin_memory=pin_memory,
        worker_init_fn=on_worker_start,
        # A separate generator: the loader draws a seed each epoch, which would shift the random
        # numbers of the training (dropout) if it came from torch's global generator.
        generator=torch.Generator(),
    )


def _as_it_is(item: Any) -> Any:
    return item


@dataclass
class _Remaining:
    """The keys of an epoch whose batches have not been yielded yet."""

    order: EpochOrder
    given: int = 0

    def __len__(self) -> int:
        return len(self.order) - self.given

    def __iter__(self) -> Iterator[BatchKey]:
        return iter(replace(self.order, skip=self.order.skip + self.given))


class RecoveringLoader:
    """Iterate over the batches of `order`, even if workers die.

    Notices are taken off the batches, and each is passed to `on_notice` once. A worker that one
    loader loses is lost for all loaders of the run. One iterator at a time.
    """

    def __init__(
        self,
        split: str,
        order: EpochOrder,
        make: Callable[..., DataLoader[Any]],  # from keys and `workers`
        worker_pool: WorkerPool,
        on_notice: Callable[[Notice], None] = lambda notice: None,
    ) -> None:
        self._split = split
        self._remaining = _Remaining(order)
        self._make = make
        self._worker_pool = worker_pool
        self._on_notice = on_notice
        self._reported: set[Notice] = set()
        self._workers = 0  # of the loader
        self._loader: DataLoader[Any] | None = None
        self._made: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Start an epoch. Workers start now, not at the first batch."""
        self._remaining.given = 0
        self._start()
        return self._items()

    def close(self) -> None:
        """End the workers."""
        if self._made is not None:
            self._worker_pool.end(self._made)
        self._loader = self._made = None

    def _items(self) -> Iterator[Any]:
        try:
            while True:
                yield self._next()  # a variable would keep the batch alive
        except StopIteration:
            return
        finally:
            if self._loader is not None and not self._loader.persistent_workers:
                self.close()

    def _next(self) -> Any:
        while True:
            try:
                made = self._start() if self._made is None else self._made
                with self._worker_pool.awaiting(made):
                    item = next(made)
            except LostWorker as lost:
                self._fall_back(str(lost))
            else:
                self._remaining.given += 1
                return self._report(item) if isinstance(item[0], Noticed) else item

    def _report(self, item: tuple[Noticed, Any]) -> tuple[Batch, Any]:
        noticed, timing = item
        for notice in noticed.notices:
            if notice not in self._reported:
                self._reported.add(notice)
                self._on_notice(notice)
        return noticed.batch, timing

    def _start(self) -> Iterator[Any]:
        """Start as many workers as the pool has, or fewer if that fails."""
        while True:
            workers = self._worker_pool.workers if len(self._remaining) else 0
            if self._loader is None or self._workers != workers:
                self.close()
                self._workers = workers
                self._loader = self._make(self._remaining, workers=workers)
            try:
                self._made = self._worker_pool.start(self._loader, self._made)
                return self._made
            except LostWorker as lost:
                self._fall_back(str(lost))

    def _fall_back(self, reason: str) -> None:
        self.close()
        order = self._remaining.order
        batch = order.skip + self._remaining.given + 1
        self._worker_pool.drop_worker(self._split, order.epoch, batch, reason)
