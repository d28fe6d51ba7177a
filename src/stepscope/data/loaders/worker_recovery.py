"""A loader that continues when its workers die.

A worker may be killed, or fail to start because memory is short. The loader then continues from the
same batch with one worker fewer, in the end with none. No batch is lost or repeated: a batch
depends on its key alone (`data.sample_order`), so another worker makes it again.
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
    """The keys of an epoch whose batches have not been yielded yet."""

    order: EpochOrder
    given: int = 0

    def __len__(self) -> int:
        return len(self.order) - self.given

    def __iter__(self) -> Iterator[BatchKey]:
        return iter(replace(self.order, skip=self.order.skip + self.given))


class RecoveringLoader:
    """Iterate over the batches of `order`, even if workers die.

    `make` returns a loader with a number of workers for some keys. The worker pool has the number
    of workers: a worker that one loader loses is lost for all loaders of the run. One iterator at a
    time.
    """

    def __init__(
        self,
        split: str,
        order: EpochOrder,
        make: Callable[[int, Remaining], DataLoader[Any]],
        worker_pool: WorkerPool,
    ) -> None:
        self._split = split
        self._remaining = Remaining(order)
        self._make = make
        self._worker_pool = worker_pool
        self._loader: DataLoader[Any] | None = None
        self._made: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Start an epoch. Workers start now, not at the first batch."""
        self._remaining.given = 0
        self._start()
        return self._give()

    def close(self) -> None:
        """End the workers."""
        if self._made is not None:
            self._worker_pool.end(self._made)
        self._loader = self._made = None

    def _give(self) -> Iterator[Any]:
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
                batch = self._worker_pool.next_of(
                    self._start() if self._made is None else self._made
                )
            except LostWorker as lost:
                self._fall_back(str(lost))
            else:
                self._remaining.given += 1
                return batch

    def _start(self) -> Iterator[Any]:
        """Start as many workers as the pool has, or fewer if that fails."""
        while True:
            workers = self._worker_pool.workers if len(self._remaining) else 0
            if self._loader is None or self._loader.num_workers != workers:
                self.close()
                self._loader = self._make(workers, self._remaining)
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
