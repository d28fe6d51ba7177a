"""The events that hooks record, the buffer that holds them, and the state that hooks share.

An event is `(kind, time_ns, subject, detail, mark)`. Inside the script's loop the hooks only record
these fields; `trace.detect` interprets them later. Paired kinds open and close a span, and
spans may be nested.

| kind | subject | detail |
| --- | --- | --- |
| ITERATE | the iteration: a number | the second clock in nanoseconds, the loader's number or None |
| ITERATED | the iteration | fields of `Iteration` |
| FETCH | the iteration | |
| FETCHED | the iteration | samples of the batch or None, fields of `LoadTiming` or None |
| EXHAUSTED, DROPPED | the iteration | the second clock |
| MOVE, MOVED | | |
| CALL | the outermost module's id | fields of `Call` |
| CALLED | whether gradients were enabled | |
| BACKWARD | | |
| BACKWARD_DONE | | the loss, or a function that reads it later, or None |
| STEP | the optimiser's id; negative if the update was inferred | |
| STEPPED | as STEP | the second clock |
| ZERO, ZEROED | | |
| MADE | the id of a new optimiser | |
| CLOCKS | | the second clock, before any other event |
| OWN, OWN_DONE | | the tracer's own work |
| DETAIL | `full`, `off` or `layers`, from the next step on | |

EXHAUSTED closes a FETCH, DROPPED stands alone. The second clock is read where an epoch begins or
may end; between two readings it is assumed to advance like the first.

`mark` is a point in the queue of an asynchronous device, or None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from threading import _DummyThread, current_thread, get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.meter.clock import now_ns
from stepscope.trace.loader_profile import LoaderProfile

if TYPE_CHECKING:
    import weakref

    import torch
    from torch import nn

    from stepscope.meter.device_timeline import DeviceQueue
    from stepscope.meter.step_rows import Load, LoadTiming
    from stepscope.trace.allreduce_hooks import AllreduceWatch
    from stepscope.trace.loader_profile import LoaderWork
    from stepscope.trace.weight_watch import WeightWatch

ITERATE, ITERATED, FETCH, FETCHED, EXHAUSTED, DROPPED = range(6)
MOVE, MOVED, CALL, CALLED, BACKWARD, BACKWARD_DONE = range(6, 12)
STEP, STEPPED, ZERO, ZEROED, OWN, OWN_DONE = range(12, 18)
DETAIL, MADE, CLOCKS = range(18, 21)

Event = tuple[int, int, Any, Any, Any]
FIELDS = ("kind", "time_ns", "subject", "detail", "mark")


class Iteration(NamedTuple):
    """The number of batches and the loader of an iteration, where known."""

    length: int | None
    loader: int | None


class Call(NamedTuple):
    """The arguments of a call of the outermost module."""

    grad: bool
    training: bool
    samples: int | None


@dataclass(slots=True)
class EventBuffer:
    """The events since the last flush.

    `fields` is a flat list of the five fields of each event. A tuple for each event would be
    tracked by the garbage collector: that costs 1.6 us a step and brings the next full collection
    forward, which takes 0.14 s with torch loaded. For the same reason details are numbers and plain
    tuples of numbers where possible.
    """

    queue: DeviceQueue | None = None  # of the device that the script trains on
    fields: list[Any] = field(default_factory=list)
    flushed: int = 0  # the number of fields flushed so far

    def record(self, kind: int, subject: Any = None, detail: Any = None) -> None:
        """Append an event that happens now."""
        mark = None if self.queue is None else self.queue.mark()
        self.fields.extend((kind, now_ns(), subject, detail, mark))

    def flush(self) -> list[Any]:
        """Return the recorded fields and clear the buffer."""
        fields = self.fields[:]
        self.flushed += len(fields)
        self.fields.clear()  # hooks hold on to this very list
        return fields


@dataclass(slots=True)
class HookState:
    """What the hooks of a process know of the script, and where they record."""

    allreduce: AllreduceWatch
    buffer: EventBuffer = field(default_factory=EventBuffer)
    # Called between two steps: before a fetch that follows an update, or before the end of an
    # update if nothing is fetched. Before a fetch it is only called from `boundary_from_ns` on, or
    # after `boundary_from_steps` steps; the callback sets both.
    at_boundary: Callable[[], None] = lambda: None
    boundary_from_ns: int = 0
    boundary_from_steps: int = 0
    # Called when a step may have become complete. It may raise to end the script.
    at_step_end: Callable[[], None] | None = None
    full: bool = True
    busy: bool = False
    device: str | None = None
    # Whether the module that told the device was moved since; all devices with weights but CPUs.
    device_is_stale: bool = False
    devices: set[str] = field(default_factory=set)
    # What was switched off because it failed in the script, and why.
    failed: dict[str, str] = field(default_factory=dict)
    # While a CUDA graph is captured: the optimisers that have stepped.
    captured: list[weakref.ref[torch.optim.Optimizer]] | None = None
    unseen_replays: int = 0
    # The number of updated steps, and the optimisers of the last one: a GAN's two make one step.
    steps: int = 0
    updated_by: tuple[int, ...] = ()
    # Optimisers by id, and the ids of those that have stepped beside others.
    optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = field(default_factory=dict)
    beside: set[int] = field(default_factory=set)
    # Outermost modules by id, and the ids of those without weights. `awaits_backward`: one was
    # called with gradients and samples, and no backward pass, update or fetch has followed.
    roots: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)
    weightless: set[int] = field(default_factory=set)
    awaits_backward: bool = False
    # Infers updates while the script has made no optimiser; the number of these updates, and the
    # time that took.
    weights: WeightWatch | None = None
    inferred_updates: int = 0
    inferring_ns: int = 0

    # The traced thread. It is only compared if there are several: that takes 0.7 us a step.
    thread: int = field(default_factory=get_ident)
    has_threads: bool = False
    # The outermost module that is being called, and the modules that contain a whole loop.
    calling: int | None = None
    loops: set[int] = field(default_factory=set)
    in_backward: bool = False
    in_step: int = 0
    # How many more moves without effect are recorded; None if moves have an effect.
    idle_moves_left: int | None = 100
    watch_moves: Callable[[], None] = lambda: None
    at_cuda: Callable[[], None] = lambda: None  # called once the model is on a CUDA device
    # Whether the samples of the next call are known from the batch just fetched, and whether there
    # was a call since the last fetch.
    counted: bool = False
    called: bool = True
    steps_at_fetch: int = 0
    # Whether CPU time is read in this step, and the step from which on it is read again.
    reads_cpu: bool = True
    cpu_from_steps: int = 0
    timings: deque[Load] = field(default_factory=deque)
    loader_profile: LoaderProfile = field(default_factory=LoaderProfile)
    scaled: tuple[int, torch.Tensor] | None = None
    keys: dict[int, int] = field(default_factory=dict)
    deaths: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    loaders: dict[int, tuple[weakref.ref[Any], int]] = field(default_factory=dict)
    # Returns a new number for an iteration or a loader.
    new_key: Callable[[], int] = field(default_factory=lambda: count(1).__next__)
    longest: int = 0
    # The begin and end of each checkpoint.
    saves: list[tuple[int, int]] = field(default_factory=list)
    # The largest first batch of any iteration. `measures_next_batch` requests the next measurement.
    batch_bytes: int = 0
    measures_next_batch: bool = False

    def fail(self, what: str, error: Exception) -> None:
        """Record why a part of the recording was switched off."""
        self.failed.setdefault(what, f"switched off: {type(error).__name__}: {error}")

    def is_elsewhere(self) -> bool:
        """Return whether a hook is called on another thread than the traced one.

        Autograd runs the backward pass of a device on a thread of its own, which Python has not
        started. What is updated there is part of the traced backward pass.
        """
        if get_ident() == self.thread:
            return False
        return not (self.in_backward and isinstance(current_thread(), _DummyThread))

    def take_timing(self, timing: LoadTiming, work: LoaderWork | None) -> None:
        """Add a worker's timing of the batch that is being fetched, and its profile."""
        worker, start_ns, wall_ns, cpu_ns = timing
        self.timings.append((worker, start_ns, wall_ns, cpu_ns))
        if work is not None:
            self.loader_profile.work.merge(work)
