"""A training loop that is played to the detector, and a sheet that keeps what comes out."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest
from scripted_clock import MS, ScriptedClock, ScriptedDevice

from stepscope.meter.step_rows import EpochTiming, LoadTiming, StepRow
from stepscope.trace import event_buffer as e
from stepscope.trace.detect.row_builder import PlainRows
from stepscope.trace.detect.steps import StepDetector

MODEL, TEACHER, CRITIC = 11, 12, 13
ADAM, SGD = 21, 22
TRAIN, TEST, OTHER_LOADER = 1, 2, 3


@dataclass
class Sheet:
    """A sink that keeps what it is given."""

    rows: list[StepRow] = field(default_factory=list)
    epochs: list[tuple[str, EpochTiming, float | None]] = field(default_factory=list)

    def steps(self, rows: StepRow | PlainRows) -> None:
        self.rows += rows if isinstance(rows, PlainRows) else [rows]

    def epoch(self, split: str, timing: EpochTiming, loss: float | None) -> None:
        self.epochs.append((split, timing, loss))

    def of(self, split: str) -> list[EpochTiming]:
        return [timing for name, timing, _ in self.epochs if name == split]

    @property
    def lasted_ms(self) -> list[float]:
        return [row.step_ns / MS for row in self.rows]

    @property
    def began_ms(self) -> list[float]:
        return [row.start_ns / MS for row in self.rows]

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """The epoch of every step, and its number in that."""
        return [(row.epoch, row.step) for row in self.rows]

    @property
    def samples(self) -> list[int | None]:
        return [row.samples for row in self.rows]

    @property
    def splits(self) -> list[str]:
        return [split for split, _, _ in self.epochs]

    def phases_ms(self, step: int = 0) -> dict[str, float]:
        """The phases of a step that took any time."""
        names = ("data", "transfer", "forward", "backward", "optimizer", "other")
        spent = self.rows[step].spent
        return {name: ns / MS for name, ns in zip(names, spent, strict=True) if ns}

    def hold(self) -> None:
        """Check what holds for every loop: phases and steps account for the time of an epoch."""
        for row in self.rows:
            assert sum(row.spent) == row.step_ns, "phases partition a step"
        for timing in self.of("train"):
            parts_s = timing.loader_start_s + timing.steps_s + timing.loader_stop_s
            assert parts_s == pytest.approx(timing.total_s, rel=1e-6, abs=1e-9)


def fields_of(events: Sequence[e.Event]) -> list[Any]:
    """Put the fields of events one after the other, as hooks do."""
    return [field for event in events for field in event]


class Loop:
    """A training loop: every call is something that it does, and how many ms it takes."""

    def __init__(self, *, on_device: bool = False) -> None:
        self.clock = ScriptedClock()
        self.device = ScriptedDevice(self.clock) if on_device else None
        self.events: list[e.Event] = []
        self.record(e.CLOCKS, None, self.other_clock)

    def __repr__(self) -> str:
        names = {value: name for name, value in vars(e).items() if name.isupper()}
        lines = [f"{time / MS:g} {names[k]} {who} {what}" for k, time, who, what, _ in self.events]
        return "\n".join(["", *lines])

    @property
    def other_clock(self) -> int:
        """Another clock counts from another moment."""
        return self.clock.now + 1_000_000 * MS

    def wait(self, ms: float) -> None:
        self.clock.pass_ms(ms)

    def play(self, doings: str) -> None:
        """Do one thing after the other: "fetch 1, call 2 samples=4, wait 0.5, backward"."""
        for doing in doings.removesuffix(", ").split(", "):
            name, *words = doing.split()
            options = dict(word.split("=") for word in words if "=" in word)
            args = [literal_eval(word) for word in words if "=" not in word]
            getattr(self, name)(*args, **{key: literal_eval(options[key]) for key in options})

    def record(self, kind: int, subject: Any = None, detail: Any = None) -> None:
        mark = None if self.device is None else self.device.mark()
        self.events.append((kind, self.clock.now, subject, detail, mark))

    def iterate(
        self, loader: int = TRAIN, ms: float = 0, length: int | None = None, of: int | None = None
    ) -> None:
        self.record(e.ITERATE, loader, (self.other_clock, of))
        self.wait(ms)
        self.record(e.ITERATED, loader, e.Iteration(length, of))

    def fetch(
        self,
        ms: float = 1,
        loader: int = TRAIN,
        samples: int | None = 8,
        load: LoadTiming | None = None,
    ) -> None:
        self.record(e.FETCH, loader)
        self.wait(ms)
        self.record(e.FETCHED, loader, (samples, load))

    def exhaust(self, ms: float = 1, loader: int = TRAIN) -> None:
        self.record(e.FETCH, loader)
        self.wait(ms)
        self.record(e.EXHAUSTED, loader, self.other_clock)

    @contextmanager
    def iterating(
        self, loader: int = TRAIN, *args: Any, stop_ms: float = 1, **options: Any
    ) -> Iterator[None]:
        """Iterate over a loader to its end."""
        self.iterate(loader, *args, **options)
        yield
        self.exhaust(stop_ms, loader)

    def drop(self, loader: int = TRAIN) -> None:
        self.record(e.DROPPED, loader, self.other_clock)

    def move(self, ms: float = 1) -> None:
        self.record(e.MOVE)
        self.wait(ms)
        self.record(e.MOVED)

    def call(
        self,
        ms: float = 2,
        module: int = MODEL,
        *,
        grad: bool = True,
        training: bool = True,
        samples: int | None = 8,
        work: float = 0,
    ) -> None:
        self.record(e.CALL, module, e.Call(grad, training, samples))
        if self.device is not None:
            self.device.work(work)
        self.wait(ms)
        self.record(e.CALLED, grad)

    def predict(self, ms: float = 2, module: int = MODEL) -> None:
        self.call(ms, module, grad=False, training=False)

    def backward(self, ms: float = 4, loss: float | None = 1.0, work: float = 0) -> None:
        self.record(e.BACKWARD)
        if self.device is not None:
            self.device.work(work)
        self.wait(ms)
        self.record(e.BACKWARD_DONE, None, None if loss is None else (lambda: loss))

    def begin_update(self, optimizer: int = ADAM) -> None:
        self.record(e.STEP, optimizer)

    def end_update(self, optimizer: int = ADAM) -> None:
        self.record(e.STEPPED, optimizer, self.other_clock)

    @contextmanager
    def stepping(self, optimizer: int = ADAM) -> Iterator[None]:
        self.begin_update(optimizer)
        yield
        self.end_update(optimizer)

    def update(self, ms: float = 3, optimizer: int = ADAM) -> None:
        with self.stepping(optimizer):
            self.wait(ms)

    def make(self, optimizer: int) -> None:
        self.record(e.MADE, optimizer)

    def zero(self, ms: float = 1) -> None:
        self.record(e.ZERO)
        self.wait(ms)
        self.record(e.ZEROED)

    def detail(self, kind: str) -> None:
        self.record(e.DETAIL, kind)

    def own(self, ms: float) -> None:
        self.record(e.OWN)
        self.wait(ms)
        self.record(e.OWN_DONE)

    def learn(
        self,
        module: int = MODEL,
        optimizer: int = ADAM,
        *,
        samples: int | None = 8,
        training: bool = True,
        loss: float | None = 1.0,
    ) -> None:
        """What follows a fetch in the plainest loop: 9 ms."""
        self.accumulate(module, samples=samples, training=training, loss=loss)
        self.update(3, optimizer)

    def accumulate(
        self,
        module: int = MODEL,
        *,
        samples: int | None = 8,
        training: bool = True,
        loss: float | None = 1.0,
    ) -> None:
        """A forward and a backward pass without an update: 6 ms."""
        self.call(2, module, samples=samples, training=training)
        self.backward(4, loss)

    def step(self, loader: int = TRAIN) -> None:
        """A batch and what follows it: 10 ms."""
        self.fetch(1, loader)
        self.learn()

    def draw(
        self, loader: int, ms: float = 1, of: int | None = None, samples: int | None = 8
    ) -> None:
        """Fetch a batch from an iterator that is made for it: `next(iter(loader))`."""
        self.iterate(loader, of=of)
        self.fetch(ms, loader, samples=samples)
        self.drop(loader)

    def train(self, batches: int, loader: int = TRAIN) -> None:
        """An epoch of 10 ms a step, 5 ms before and 1 ms after."""
        with self.iterating(loader, ms=5):
            for _ in range(batches):
                self.step(loader)

    def test(self, batches: int, loader: int = TEST) -> None:
        """An evaluation of 3 ms a batch, 2 ms before and 1 ms after."""
        with self.iterating(loader, ms=2):
            for _ in range(batches):
                self.fetch(1, loader, samples=4)
                self.predict(2)

    @cached_property
    def sheet(self) -> Sheet:
        """What is detected in the whole loop."""
        return self.detected()

    def detected(self, kind: type[StepDetector] = StepDetector, at_once: int = 10**6) -> Sheet:
        sheet = Sheet()
        detector = kind(sheet, 0)
        for begin in range(0, len(self.events), at_once):
            detector.take(fields_of(self.events[begin : begin + at_once]))
        detector.finish()
        sheet.hold()
        return sheet


class EventByEvent(StepDetector):
    """Finds out anew what every step is, also if it goes like the one before."""

    def _take_repeats(self, columns: Sequence[Sequence[Any]], begin: int) -> int:
        return 0


def repeats_taken(loop: Loop) -> list[int]:
    """Return how many updates were taken at once at each fetch, by the fast path."""
    taken: list[int] = []

    class Counting(StepDetector):
        def _take_repeats(self, columns: Sequence[list[Any]], begin: int) -> int:
            before = self.tracker.updates
            events = super()._take_repeats(columns, begin)
            taken.append(self.tracker.updates - before)
            return events

    assert loop.detected(Counting) == loop.detected(EventByEvent)
    return taken
