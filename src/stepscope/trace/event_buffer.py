"""What hooks in a foreign script write in, and what takes them off again."""

from __future__ import annotations

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
    """What the hooks share: the events so far, and what they need to know of each other.

    `notes` holds the five fields of each event one after the other. As a tuple each would be an
    object that Python's collector looks at, 1.6 us a step in all, and that it keeps for long: so
    the next look at everything there is comes sooner, 0.14 s with torch loaded. For the same reason
    details are numbers and plain tuples of numbers, as far as that is possible.
    """

    # Called between two steps: before a fetch that follows an update, or before the end of an
    # update where nothing is fetched. Before a fetch only from a moment on, or after so many
    # steps: whoever is called says from when on it is to be called again.
    at_boundary: Callable[[], None] = lambda: None
    boundary_from_ns: int = 0
    boundary_from_steps: int = 0
    # Called when a step may just have become complete; it may raise to end the script.
    at_step_end: Callable[[], None] | None = None
    notes: list[Any] = field(default_factory=list)
    full: bool = True
    busy: bool = False
    device: str | None = None
    queue: DeviceQueue | None = None
    # Steps that have updated, and by which optimisers the last one did: a GAN's two are one step.
    steps: int = 0
    updated_by: tuple[int, ...] = ()
    # Optimisers that were made, by their ids, and those that have stepped beside others.
    optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = field(default_factory=dict)
    beside: set[int] = field(default_factory=set)
    # Outermost modules, by their ids, and those of them without weights. Whether one was called
    # with gradients and samples, and no backward pass, update or fetch has come since then.
    roots: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)
    weightless: set[int] = field(default_factory=set)
    awaits_backward: bool = False

    # Which thread is watched is asked only where there are several: asking takes 0.7 us in a step.
    thread: int = field(default_factory=get_ident)
    has_threads: bool = False
    # The outermost module that is being called, and those that turned out to hold a whole loop.
    calling: int | None = None
    loops: set[int] = field(default_factory=set)
    in_backward: bool = False
    in_step: int = 0
    # How many moves to where a tensor is already are still looked at; None: all, since some move.
    idle_moves_left: int | None = 100
    watch_moves: Callable[[], None] = lambda: None
    # Whether the next call is of a batch whose samples are known, since it was fetched just before,
    # and whether there was a call since then.
    counted: bool = False
    called: bool = True
    steps_at_fetch: int = 0
    # Whether CPU time is read in this step, and from which one on it will be read again.
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
        """Put down what happened now."""
        mark = None if self.queue is None else self.queue.mark()
        self.notes.extend((kind, now_ns(), subject, detail, mark))

    @property
    def events(self) -> list[e.Event]:
        """What was noted and not taken yet, event by event."""
        notes = iter(self.notes)
        return list(zip(notes, notes, notes, notes, notes, strict=True))

    def take_notes(self) -> list[Any]:
        """Hand over what was noted, and begin anew."""
        notes = self.notes[:]
        self.notes.clear()  # hooks hold on to this very list
        return notes

    def take_timing(self, timing: LoadTiming) -> None:
        """Take a worker's account of the batch that is being fetched."""
        worker, start_ns, wall_ns, cpu_ns = timing
        self.timings.append((worker, start_ns, wall_ns, cpu_ns))

    @property
    def steps_since_fetch(self) -> int:
        """How many steps have updated since a batch was fetched."""
        return self.steps - self.steps_at_fetch

    def new_key(self) -> int:
        """Return a number for an iteration."""
        self.next_key += 1
        return self.next_key


class Patches:
    """Attributes replaced for a while."""

    def __init__(self) -> None:
        self._replaced: list[_Replaced] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put `make(original)` in the place of an attribute of a class or module."""
        original = getattr(owner, name)
        own = name in vars(owner)
        stored = vars(owner).get(name)
        ours = make(original)
        setattr(owner, name, ours)
        self._replaced.append(_Replaced(owner, name, ours, stored, own))

    def take_off(self, owner: Any, name: str) -> None:
        """Put one attribute back before the others, unless somebody has put theirs on top."""
        for replaced in self._replaced:
            if replaced[:2] == (owner, name) and vars(owner).get(name) is replaced.ours:
                self._replaced.remove(replaced)
                replaced.put_back()
                return

    def undo(self) -> None:
        """Put everything back, the last one first."""
        while self._replaced:
            self._replaced.pop().put_back()


class _Replaced(NamedTuple):
    """An attribute that is replaced: by what, and what its owner had there, if it had any."""

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
