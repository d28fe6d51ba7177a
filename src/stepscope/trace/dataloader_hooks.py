"""Hooks on torch's DataLoader: the begin of an iteration, each fetched batch, and the end.

Workers time the making of each batch and send the timing along with it. The iterator unwraps the
batch, so the script sees it unchanged.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data._utils.pin_memory import pin_memory

from stepscope.hardware.stack_dump import install_stack_dump, installed_stack_dump
from stepscope.meter.clock import now_ns, other_clock_ns, own_cpu_ns, worker_cpu_ns
from stepscope.meter.step_rows import Load, LoadTiming
from stepscope.trace import event_buffer as e
from stepscope.trace.event_buffer import HookState
from stepscope.trace.loader_profile import LoaderProfile, LoaderWork
from stepscope.trace.patches import Patches
from stepscope.trace.sample_count import bytes_of, samples_of

_OUR_FOLDER = str(Path(__file__).parent)
TakeTiming = Callable[[LoadTiming, LoaderWork | None], None]


class TimedBatch:
    """A batch on its way from a worker, and its timing."""

    def __init__(self, batch: Any, timing: LoadTiming, work: LoaderWork | None) -> None:
        self.batch = batch
        self.timing = timing
        self.work = work

    def pin_memory(self) -> TimedBatch:
        """Pin the batch as it would be without the wrapper."""
        return TimedBatch(pin_memory(self.batch), self.timing, self.work)


class TimedStart:
    """A `worker_init_fn` that times the worker's fetches and calls the script's own one."""

    def __init__(self, user_init: Callable[[int], Any] | None) -> None:
        self.user_init = user_init
        self.stacks = installed_stack_dump()

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it creates its fetcher."""
        profile = LoaderProfile()
        profile.sample_this_thread()
        if self.stacks is not None:  # a forked worker has it already
            install_stack_dump(self.stacks)
        for fetcher in (torch_fetch._MapDatasetFetcher, torch_fetch._IterableDatasetFetcher):
            fetcher.fetch = _timed(fetcher.fetch, profile)  # type: ignore[method-assign]
        if self.user_init is not None:
            self.user_init(worker)


def _timed(
    fetch: Callable[[Any, Any], Any], profile: LoaderProfile
) -> Callable[[Any, Any], TimedBatch]:
    def timed(fetcher: Any, index: Any) -> TimedBatch:
        info = get_worker_info()
        profile.watch(fetcher)
        cpu_start, start = worker_cpu_ns(), now_ns()
        batch = fetch(fetcher, index)
        wall, cpu = now_ns() - start, worker_cpu_ns() - cpu_start
        timing = LoadTiming(-1 if info is None else info.id, start, wall, cpu)
        return TimedBatch(batch, timing, profile.work_to_send())

    return timed


def start_timed(
    loader: DataLoader[Any],
    iterate: Callable[[Any], Any],
    take: TakeTiming,
    profile: LoaderProfile | None = None,
) -> Any:
    """Create the loader's iterator; workers that it starts time each batch.

    Without workers, `profile` times the samples in this process.
    """
    if loader.num_workers == 0:
        iterator = iterate(loader)
        if profile is not None:
            profile.watch(getattr(iterator, "_dataset_fetcher", None))
        return iterator
    user_init = loader.worker_init_fn
    loader.worker_init_fn = TimedStart(user_init)
    try:
        iterator = iterate(loader)
    finally:
        loader.worker_init_fn = user_init
    if "_next_data" not in vars(iterator):
        _unwrap(iterator, take)
    return iterator


def _unwrap(iterator: Any, take: TakeTiming) -> None:
    """Let the iterator return plain batches for as long as it lives.

    The method is replaced on the object, not on its class, because persistent workers may outlive
    the hooks. It uses a weak reference, because an iterator that kept itself alive would never end
    its workers.
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
            take(data.timing, data.work)
            return data.batch
        return data

    iterator._next_data = next_data


def _without_our_frames(argument: Any) -> Any:
    """Remove the tracer's lines from the worker's traceback in an exception's text."""
    if not isinstance(argument, str) or _OUR_FOLDER not in argument:
        return argument
    entry = rf'  File "{re.escape(_OUR_FOLDER)}.*\n(?:    .*\n)*'
    return type(argument)(re.sub(entry, "", argument))


# Reading CPU time is a system call; twice per step it takes 6 us on a VM. Where making a batch
# takes less than a hundred times that, it is read in one step in `_CPU_OF_ONE_STEP_IN`, after the
# first `_CPU_OF_ALL_STEPS`.
_QUICK_NS = 600_000
_CPU_OF_ALL_STEPS = 100
_CPU_OF_ONE_STEP_IN = 17  # a prime, since shards and buffers repeat in even numbers
CPU_LEFT_OUT = (
    f"after the first {_CPU_OF_ALL_STEPS} steps, read in one step of {_CPU_OF_ONE_STEP_IN} only: "
    f"a batch is made in less than {_QUICK_NS / 1e6} ms, and reading the CPU time would slow it"
)


def watch_loaders(state: HookState, patches: Patches) -> None:
    """Install the hooks on torch's loader and on its two kinds of iterators."""
    multi = torch_dataloader._MultiProcessingDataLoaderIter
    either = torch_dataloader._BaseDataLoaderIter
    patches.replace(DataLoader, "__iter__", functools.partial(_iterate, state))
    patches.replace(either, "__next__", functools.partial(_fetch, state))
    patches.replace(multi, "__del__", functools.partial(_drop, state))


def _iterate(state: HookState, original: Any) -> Any:
    record = state.buffer.record

    def iterate(loader: Any) -> Any:
        if state.busy or (state.has_threads and get_ident() != state.thread):
            return start_timed(loader, original, state.take_timing, state.loader_profile)
        key = state.keys.get(id(loader._iterator)) or state.new_key()
        number = _number_of(state, loader)
        record(e.ITERATE, key, (other_clock_ns(), number))
        state.busy = True
        iterator = None
        try:
            iterator = start_timed(loader, original, state.take_timing, state.loader_profile)
        finally:
            state.busy = False
            length = None if iterator is None else _length(loader)
            state.longest = max(state.longest, length or 0)
            record(e.ITERATED, key, (length, number))
        _remember(state, iterator, key)
        state.measures_next_batch = True
        return iterator

    return iterate


def _number_of(state: HookState, loader: Any) -> int:
    """Return the loader's number: an address may be reused by another loader."""
    reference, number = state.loaders.get(id(loader), (None, 0))
    if reference is None or reference() is not loader:
        number = state.new_key()
        state.loaders[id(loader)] = (weakref.ref(loader), number)
    return number


def _length(loader: Any) -> int | None:
    """Return the number of batches, if known.

    An iterable data set is not asked: torch would remember the answer.
    """
    iterable = loader._dataset_kind != torch_dataloader._DatasetKind.Map
    try:
        return None if iterable else len(loader)
    except Exception:  # a sampler without a length, or a script's own one
        return None


def _remember(state: HookState, iterator: Any, key: int) -> None:
    identity = id(iterator)
    state.keys[identity] = key

    def died(reference: Any) -> None:
        state.deaths.pop(identity, None)
        if state.keys.pop(identity, None) is not None and get_ident() == state.thread:
            state.counted = False  # its batch may still be used
            state.buffer.record(e.DROPPED, key, other_clock_ns())

    state.deaths[identity] = weakref.ref(iterator, died)


def _fetch(state: HookState, original: Any) -> Any:
    """Record a fetch; without workers its time is also the load time of the batch."""
    buffer, timings, cpu_ns = state.buffer, state.timings, own_cpu_ns
    extend, record = buffer.fields.extend, buffer.record
    begin, end, keys = e.FETCH, e.FETCHED, state.keys
    without_workers, tensor = torch_dataloader._SingleProcessDataLoaderIter, torch.Tensor

    def fetch(iterator: Any) -> Any:
        if state.busy or (state.has_threads and get_ident() != state.thread):
            return original(iterator)
        key = keys.get(id(iterator))
        if key is None:  # created before the hooks, or asked again after its end
            key = state.new_key()
            record(e.ITERATE, key, (other_clock_ns(), None))
            record(e.ITERATED, key, (None, None))
            _remember(state, iterator, key)
        if timings:
            timings.clear()
        begin_ns, steps = now_ns(), state.steps
        ends_a_step = steps != state.steps_at_fetch
        if ends_a_step:
            state.steps_at_fetch = steps
            state.updated_by = ()
            state.reads_cpu = steps >= state.cpu_from_steps
            if steps >= state.boundary_from_steps or begin_ns >= state.boundary_from_ns:
                state.at_boundary()
                begin_ns = now_ns()
        extend((begin, begin_ns, key, None, buffer.queue and buffer.queue.mark()))
        if ends_a_step and state.at_step_end is not None:
            state.at_step_end()
            begin_ns = now_ns()
        state.busy, state.awaits_backward = True, False
        is_made_here = isinstance(iterator, without_workers)
        begin_cpu_ns = cpu_ns() if is_made_here and state.reads_cpu else None
        try:
            batch = original(iterator)
        except StopIteration:
            state.busy = False
            record(e.EXHAUSTED, key, other_clock_ns())
            # A persistent iterator returns with a new key, as a new iteration.
            keys.pop(id(iterator), None)
            raise
        except BaseException:
            state.busy = False
            record(e.FETCHED, key, (None, None))
            raise
        state.busy = False
        end_ns = now_ns()
        load: Load | None = None
        if begin_cpu_ns is not None:
            took_ns = end_ns - begin_ns
            load = (-1, begin_ns, took_ns, cpu_ns() - begin_cpu_ns)
            end_ns = now_ns()  # the loop waits for this too: milliseconds on a busy machine
            if took_ns < _QUICK_NS and steps >= _CPU_OF_ALL_STEPS:
                state.cpu_from_steps = steps + _CPU_OF_ONE_STEP_IN
        elif is_made_here:
            load = (-1, begin_ns, end_ns - begin_ns, None)
        elif timings:
            load = timings.popleft()
        if state.measures_next_batch:
            state.measures_next_batch = False
            state.batch_bytes = max(state.batch_bytes, bytes_of(batch))
        # Most batches begin with a tensor, whose shape is the fastest source.
        begins = type(batch) in (list, tuple) and batch and type(batch[0]) is tensor
        samples = shape[0] if begins and (shape := batch[0].shape) else samples_of(batch)
        # After two fetches without a call, the samples of the call show which batch was used.
        state.counted = samples is not None and state.called
        state.called = False
        extend((end, end_ns, key, (samples, load), buffer.queue and buffer.queue.mark()))
        return batch

    return fetch


def _drop(state: HookState, original: Any) -> Any:
    """Record the time to end workers whose loader was not exhausted."""

    def drop(iterator: Any) -> None:
        key = state.keys.get(id(iterator))
        if key is None or state.busy or (state.has_threads and get_ident() != state.thread):
            original(iterator)
            return
        state.buffer.record(e.FETCH, key)
        try:
            original(iterator)
        finally:
            state.counted = False
            state.buffer.record(e.EXHAUSTED, key, other_clock_ns())
            state.keys.pop(id(iterator), None)

    return drop
