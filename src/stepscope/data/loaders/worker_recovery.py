"""A loader that outlives its workers.

A worker may be killed, or not start for want of memory. The loader then goes on with one worker
fewer, at last with none, from the batch where it was. Nothing is lost or repeated: a batch depends
on its key alone (`data.sample_order`), so what a dead worker had in hand is made again by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader

from stepscope.data.loaders.worker_pool import LostWorker, WorkerPool
from stepscope.data.sample_order import BatchKey, EpochOrder


@dataclass
class Remaining:
    """The keys of an epoch after those whose batches were already given out."""

    order: EpochOrder
    given: int = 0

    def __len__(self) -> int:
        return len(self.order) - self.given

    def __iter__(self) -> Iterator[BatchKey]:
        return iter(replace(self.order, skip=self.order.skip + self.given))


class RecoveringLoader:
    """Iterate over the batches of `order`, whatever becomes of the workers that make them.

    `make` gives a loader with so many workers for some keys. The number of workers is the crew's:
    what one loader loses is gone for all loaders of the run. One iterator at a time.
    """

    def __init__(
        self,
        split: str,
        order: EpochOrder,
        make: Callable[[int, Remaining], DataLoader[Any]],
        crew: WorkerPool,
    ) -> None:
        self._split = split
        self._remaining = Remaining(order)
        self._make = make
        self._crew = crew
        self._loader: DataLoader[Any] | None = None
        self._made: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. Workers start now, not at the first batch."""
        self._remaining.given = 0
        self._start()
        return self._give()

    def close(self) -> None:
        """End the workers."""
        if self._made is not None:
            self._crew.end(self._made)
        self._loader = self._made = None

    def _give(self) -> Iterator[Any]:
        try:
            while True:
                yield self._next()  # a name here would keep the batch while the loop computes
        except StopIteration:
            return
        finally:
            if self._loader is not None and not self._loader.persistent_workers:
                self.close()

    def _next(self) -> Any:
        while True:
            try:
                batch = self._crew.next_of(self._start() if self._made is None else self._made)
            except LostWorker as lost:
                self._fall_back(str(lost))
            else:
                self._remaining.given += 1
                return batch

    def _start(self) -> Iterator[Any]:
        """Start as many workers as the crew still has, and fewer where that fails."""
        while True:
            workers = self._crew.workers if len(self._remaining) else 0
            if self._loader is None or self._loader.num_workers != workers:
                self.close()
                self._loader = self._make(workers, self._remaining)
            try:
                self._made = self._crew.start(self._loader, self._made)
                return self._made
            except LostWorker as lost:
                self._fall_back(str(lost))

    def _fall_back(self, reason: str) -> None:
        self.close()
        order = self._remaining.order
        batch = order.skip + self._remaining.given + 1
        self._crew.go_on_with_one_less(self._split, order.epoch, batch, reason)
