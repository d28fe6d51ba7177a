"""How long a foreign script's loader workers took for each batch, without a change to what it sees.

A worker is started with `TimedStart` in the place of the script's own `worker_init_fn` (which it
calls). It wraps the fetching of batches in that worker alone, so fork, spawn and forkserver are the
same to it. Batches come over as `TimedBatch` and are unwrapped before the script gets them.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data._utils.pin_memory import pin_memory

from stepscope.measure.clock import now_ns, worker_cpu_ns
from stepscope.measure.rows import LoadTiming

TakeTiming = Callable[[LoadTiming], None]


class TimedBatch:
    """A batch on its way from a worker, and the time that it took."""

    def __init__(self, batch: Any, timing: LoadTiming) -> None:
        self.batch = batch
        self.timing = timing

    def pin_memory(self) -> TimedBatch:
        """Be pinned as the batch alone would be."""
        return TimedBatch(pin_memory(self.batch), self.timing)


class TimedStart:
    """Begin a worker: time its fetching, then do what the script wanted done."""

    def __init__(self, theirs: Callable[[int], Any] | None) -> None:
        self.theirs = theirs

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its fetcher."""
        for fetcher in (torch_fetch._MapDatasetFetcher, torch_fetch._IterableDatasetFetcher):
            fetcher.fetch = _timed(fetcher.fetch)  # type: ignore[method-assign]
        if self.theirs is not None:
            self.theirs(worker)


def _timed(fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], TimedBatch]:
    def timed(fetcher: Any, index: Any) -> TimedBatch:
        info = get_worker_info()
        cpu_start, start = worker_cpu_ns(), now_ns()
        batch = fetch(fetcher, index)
        wall, cpu = now_ns() - start, worker_cpu_ns() - cpu_start
        return TimedBatch(batch, LoadTiming(-1 if info is None else info.id, start, wall, cpu))

    return timed


def start_timed(loader: DataLoader[Any], iterate: Callable[[Any], Any], take: TakeTiming) -> Any:
    """Make the loader's iterator; workers that it starts tell how long each batch takes them."""
    if loader.num_workers == 0:
        return iterate(loader)
    theirs = loader.worker_init_fn
    loader.worker_init_fn = TimedStart(theirs)
    try:
        iterator = iterate(loader)
    finally:
        loader.worker_init_fn = theirs
    if "_next_data" not in vars(iterator):
        _unwrap(iterator, take)
    return iterator


def _unwrap(iterator: Any, take: TakeTiming) -> None:
    """Let the iterator hand out plain batches for as long as it lives.

    On the object, not on its class: persistent workers may outlive our hooks. Through a weak
    reference, lest the iterator, which ends its workers when it dies, keep itself alive.
    """
    itself = weakref.ref(iterator)
    original = type(iterator)._next_data

    def next_data() -> Any:
        try:
            data = original(itself())
        except Exception as error:
            error.args = tuple(map(_without_our_frames, error.args))
            raise
        if isinstance(data, TimedBatch):
            take(data.timing)
            return data.batch
        return data

    iterator._next_data = next_data


def _without_our_frames(argument: Any) -> Any:
    """Take our lines out of the worker's traceback, which is in the text of what it raised."""
    if not isinstance(argument, str) or __file__ not in argument:
        return argument
    entry = rf'  File "{re.escape(__file__)}".*\n(?:    .*\n)*'
    return type(argument)(re.sub(entry, "", argument))
