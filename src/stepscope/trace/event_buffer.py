"""The buffer to which hooks append events, and the patches that install hooks."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import nn

from stepscope.meter.clock import now_ns
from stepscope.meter.device_timeline import DeviceQueue
from stepscope.meter.step_rows import Load, LoadTiming
from stepscope.trace.allreduce_hooks import AllreduceWatch
from stepscope.trace.detect import events as e


@dataclass(slots=True)
class EventBuffer:
    """The events so far, and the state that the hooks share.

    `notes` is a flat list of the five fields of each event. A tuple for each event would be tracked
    by the garbage collector: that costs 1.6 us a step and brings the next full collection forward,
    which takes 0.14 s with torch loaded. For the same reason details are numbers and plain tuples
    of numbers where possible.
    """

    # Called between two steps: before a fetch that follows an update, or before the end of an
    # update if nothing is fetched. Before a fetch it is only called from `boundary_from_ns` on, or
    # after `boundary_from_steps` steps; the callback sets both.
    at_boundary: Callable[[], None] = lambda: None
    boundary_from_ns: int = 0
    boundary_from_steps: int = 0
    # Called when a step may have become complete. It may raise to end the script.
    at_step_end: Callable[[], None] | None = None
    notes: list[Any] = field(default_factory=list)
    full: bool = True
    busy: bool = False
    device: str | None = None
    queue: DeviceQueue | None = None
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
    # Whether the samples of the next call are known from the batch just fetched, and whether there
    # was a call since the last fetch.
    counted: bool = False
    called: bool = True
    steps_at_fetch: int = 0
    # Whether CPU time is read in this step, and the step from which on it is read again.
    reads_cpu: bool = True
    cpu_from_steps: int = 0
    timings: deque[Load] = field(default_factory=deque)
    scaled: tuple[int, torch.Tensor] | None = None
    allreduce: AllreduceWatch = field(default_factory=AllreduceWatch)
    keys: dict[int, int] = field(default_factory=dict)
    deaths: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    loaders: dict[int, tuple[weakref.ref[Any], int]] = field(default_factory=dict)
    next_key: int = 0
    longest: int = 0
    # The largest first batch of any iteration. `measures_next_batch` requests the next measurement.
    batch_bytes: int = 0
    measures_next_batch: bool = False

    def note(self, kind: int, subject: Any = None, detail: Any = None) -> None:
        """Append an event that happens now."""
        mark = None if self.queue is None else self.queue.mark()
        self.notes.extend((kind, now_ns(), subject, detail, mark))

    @property
    def events(self) -> list[e.Event]:
        """The events that were not taken yet, as tuples."""
        notes = iter(self.notes)
        return list(zip(notes, notes, notes, notes, notes, strict=True))

    def take_notes(self) -> list[Any]:
        """Return the recorded fields and clear the buffer."""
        notes = self.notes[:]
        self.notes.clear()  # hooks hold on to this very list
        return notes

    def take_timing(self, timing: LoadTiming) -> None:
        """Add a worker's timing of the batch that is being fetched."""
        worker, start_ns, wall_ns, cpu_ns = timing
        self.timings.append((worker, start_ns, wall_ns, cpu_ns))

    @property
    def steps_since_fetch(self) -> int:
        """The number of updated steps since the last fetch."""
        return self.steps - self.steps_at_fetch

    def new_key(self) -> int:
        """Return a new number for an iteration or a loader."""
        self.next_key += 1
        return self.next_key


class Patches:
    """Attributes that are replaced temporarily."""

    def __init__(self) -> None:
        self._replaced: list[_Replaced] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute of a class or module by `make(original)`."""
        original = getattr(owner, name)
        own = name in vars(owner)
        stored = vars(owner).get(name)
        ours = make(original)
        setattr(owner, name, ours)
        self._replaced.append(_Replaced(owner, name, ours, stored, own))

    def take_off(self, owner: Any, name: str) -> None:
        """Restore one attribute before the others, unless other code has replaced it since."""
        for replaced in self._replaced:
            if replaced[:2] == (owner, name) and vars(owner).get(name) is replaced.ours:
                self._replaced.remove(replaced)
                replaced.put_back()
                return

    def undo(self) -> None:
        """Restore all attributes in reverse order."""
        while self._replaced:
            self._replaced.pop().put_back()


class _Replaced(NamedTuple):
    """A replaced attribute: the replacement, and the owner's entry, if it had one."""

    owner: Any
    name: str
    ours: Any
    stored: Any
    was_its_own: bool

    def put_back(self) -> None:
        if self.was_its_own:
            setattr(self.owner, self.name, self.stored)
        else:
            delattr(self.owner, self.name)


def record_span(buffer: EventBuffer, begin: int, end: int, original: Any) -> Any:
    """Record the begin and end of a function, unless it is part of a recorded span."""
    note = buffer.notes.extend
    # Some scripts update each weight and clear its gradient during the backward pass.
    in_backward_too = begin == e.ZERO

    def span(*args: Any, **kwargs: Any) -> Any:
        if buffer.busy and not (in_backward_too and buffer.in_backward):
            return original(*args, **kwargs)
        if not buffer.full or (buffer.has_threads and get_ident() != buffer.thread):
            return original(*args, **kwargs)
        note((begin, now_ns(), None, None, buffer.queue and buffer.queue.mark()))
        try:
            return original(*args, **kwargs)
        finally:
            note((end, now_ns(), None, None, buffer.queue and buffer.queue.mark()))

    return functools.wraps(original)(span)
