"""Rows of finished steps, epochs and evaluations.

`RowBuilder` keeps finished steps until the device has completed them. Repeated steps become
`PlainRows`, because an object and a line for each took more than half of the processing time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, pairwise, repeat
from operator import sub
from typing import TYPE_CHECKING, Protocol

from stepscope.meter.clock import seconds
from stepscope.meter.step_rows import (
    DATA,
    SECOND_NS,
    EpochTiming,
    Load,
    StepRow,
    device_columns,
    load_of_step,
)
from stepscope.records import schema
from stepscope.trace.detect.spans import Epoch, Moment, Step, read_losses

if TYPE_CHECKING:
    from stepscope.meter.device_timeline import DeviceMark
    from stepscope.trace.detect.evaluations import LoopCandidate
    from stepscope.trace.detect.fast_path import RepeatedSteps

# The format of most rows: on a host, with a load timing, every time below one second. Then a
# nanosecond is the ninth digit, and integers are formatted in half the time.
_NS = "0.%09d"
_LINE = f"%d,%d,%s,%d{f',{_NS}' * 8},%r,%s,,,,,,%s,%d,full,,"


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Consecutive steps of one epoch on the host. `first` is the number of the first."""

    origin_ns: int  # when the recording began
    epoch: int
    first: int
    begins_ns: Sequence[int]
    samples: Sequence[int | None]
    spent: Sequence[Sequence[int]]  # by phase
    steps_ns: Sequence[int]
    loads: Sequence[Load | None]
    losses: Sequence[float | None]
    detail: str
    communication_s: Sequence[float | None]

    def __iter__(self) -> Iterator[StepRow]:
        for at, spent in enumerate(zip(*self.spent, strict=True)):
            start_ns, samples = self.begins_ns[at] - self.origin_ns, self.samples[at]
            loads = [load for load in (self.loads[at],) if load is not None]
            load, loss = load_of_step(loads, self.origin_ns), self.losses[at]
            yield StepRow(
                *(self.epoch, self.first + at, start_ns, samples, list(spent), self.steps_ns[at]),
                *(load, loss, None, self.detail, self.communication_s[at]),
            )

    def __str__(self) -> str:
        return self._lines() or "\n".join(map(str, self))

    def _lines(self) -> str | None:
        """Return the lines, or None if one of them needs another format."""
        loads = [load for load in self.loads if load is not None]
        if len(loads) < len(self.loads) or None in (*self.losses, *self.samples):
            return None
        if self.detail != schema.FULL or any(each is not None for each in self.communication_s):
            return None
        workers, load_starts_ns, loads_ns, cpus_ns = zip(*loads, strict=True)
        longest_cpu_ns = max((ns for ns in cpus_ns if ns is not None), default=0)
        if max(max(self.steps_ns), max(loads_ns), longest_cpu_ns) >= SECOND_NS:
            return None
        starts = ["%.9f" % ((ns - self.origin_ns) * 1e-9) for ns in self.begins_ns]
        load_starts = starts
        if load_starts_ns != tuple(self.begins_ns):  # not made when fetched
            load_starts = ["%.9f" % ((ns - self.origin_ns) * 1e-9) for ns in load_starts_ns]
        data, *others = self.spent
        rows = zip(
            repeat(self.epoch),
            count(self.first),
            starts,
            self.samples,
            data,
            loads_ns,
            *others,
            self.steps_ns,
            self.losses,
            ["" if ns is None else _NS % ns for ns in cpus_ns],
            load_starts,
            workers,
            strict=False,
        )
        # Formatting all lines at once is faster than one by one.
        lines = "\n".join([_LINE] * len(self.steps_ns))
        return lines % tuple(chain.from_iterable(rows))


@dataclass(slots=True)
class CommunicationTime:
    """How long each backward pass only waited for the allreduce, until its step is written."""

    _passes: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, end_ns: int, communication_ns: int) -> None:
        """Add a backward pass. Passes must be added in the order in which they end."""
        self._passes.append((end_ns, communication_ns))

    def between(self, begin_ns: int, end_ns: int) -> float | None:
        """Return the communication seconds of a step, or None. Steps must come in their order."""
        total_ns = None
        while self._passes and self._passes[0][0] <= end_ns:
            ended_ns, communication_ns = self._passes.popleft()
            if ended_ns >= begin_ns:
                total_ns = (total_ns or 0) + communication_ns
        return None if total_ns is None else seconds(total_ns)


class Sink(Protocol):
    """The receiver of the rows."""

    def steps(self, rows: StepRow | PlainRows) -> None:
        """Receive one finished step, or many."""

    def epoch(self, split: str, timing: EpochTiming, loss: float | None) -> None:
        """Receive a finished epoch (`train`) or evaluation (`test`)."""


@dataclass(slots=True)
class RowBuilder:
    """Pass finished steps, epochs and evaluations to the sink, in their order."""

    sink: Sink
    origin_ns: int
    communication: CommunicationTime = field(default_factory=CommunicationTime)
    steps_ns: int = 0  # of all steps so far
    evaluation_with_gradients_s: float = 0.0
    # Steps that the device may not have completed; their epoch, number, samples and time. And
    # epochs and evaluations that come after them: a function writes their row.
    _pending: deque[tuple[Step, Epoch, int, int | None, int] | Callable[[], None]] = field(
        default_factory=deque
    )
    _front: DeviceMark | None = None  # the mark that the device reached last in the steps written

    def step(self, step: Step, epoch: Epoch, end_ns: int) -> None:
        """Count a step in its epoch. Its row is written by the next `write`."""
        epoch.out_other_ns += step.out_other_ns
        step_ns = end_ns - step.begin_ns - step.out_ns
        samples = step.trained_samples()
        self._count(epoch, [samples], step.spent[DATA], step_ns)
        self._pending.append((step, epoch, epoch.timing.steps, samples, step_ns))

    def repeats(self, repeats: RepeatedSteps, epoch: Epoch, detail: str) -> None:
        """Count repeated steps in their epoch and write them after the earlier ones."""
        self.wait()
        number = epoch.timing.steps + 1
        begins_ns, samples, spent = repeats.begins_ns, repeats.samples, repeats.spent
        self._count(epoch, samples, sum(spent[DATA]), begins_ns[-1] - begins_ns[0])
        losses = repeats.losses()
        epoch.take_losses(losses, samples)
        self.sink.steps(
            PlainRows(
                self.origin_ns,
                epoch.timing.epoch,
                number,
                begins_ns[:-1],
                samples,
                spent,
                list(map(sub, begins_ns[1:], begins_ns)),
                repeats.loads(),
                losses,
                detail,
                [self.communication.between(*bounds_ns) for bounds_ns in pairwise(begins_ns)],
            )
        )

    def _count(
        self, epoch: Epoch, samples: Sequence[int | None], data_ns: int, steps_ns: int
    ) -> None:
        epoch.timing.count(samples)
        epoch.data_ns += data_ns
        epoch.steps_ns += steps_ns
        self.steps_ns += steps_ns

    def epoch(self, epoch: Epoch) -> None:
        """Write an epoch after all of its steps."""
        timing = epoch.timing
        timing.data_s, timing.steps_s = seconds(epoch.data_ns), seconds(epoch.steps_ns)
        timing.evaluations_s = seconds(epoch.out_other_ns)
        self._pending.append(lambda: self.sink.epoch("train", timing, epoch.loss))

    def evaluation(self, epoch: int, candidate: LoopCandidate, end: Moment) -> None:
        """Write an evaluation."""
        begin, started, stop_ns = candidate.begin, candidate.started, candidate.stop_ns
        samples = candidate.called_samples if candidate.samples is None else candidate.samples
        timing = EpochTiming(
            epoch,
            start_s=seconds(begin.time_ns - self.origin_ns),
            loader_start_s=seconds(started.time_ns - begin.time_ns),
            loader_stop_s=seconds(stop_ns),
            data_s=seconds(end.spent[DATA] - started.spent[DATA] - stop_ns),
            steps_s=seconds(end.time_ns - started.time_ns - stop_ns),
            total_s=seconds(end.other_ns - begin.other_ns),
            samples=samples or 0,
            steps=candidate.batches,
            uncounted_steps=candidate.batches if samples is None else 0,
        )
        if candidate.called_with_grad:
            self.evaluation_with_gradients_s += timing.total_s
        self._pending.append(lambda: self.sink.epoch("test", timing, None))

    def wait(self) -> None:
        """Wait until the device has completed everything, and write it."""
        for pending in self._pending:
            if isinstance(pending, tuple) and pending[0].device_laps:
                pending[0].device_laps[-1][1].wait()
        self.write()

    def write(self) -> None:
        """Write all steps that the device has completed."""
        while self._pending:
            first = self._pending[0]
            if callable(first):
                self._pending.popleft()
                first()
                continue
            step, epoch, number, samples, step_ns = first
            if not step.is_over_on_device():
                break
            self._pending.popleft()
            loss = read_losses(step.losses)
            epoch.take_losses([loss], [samples])
            # The device may have worked on nothing but an evaluation.
            on_device, self._front = step.device_seconds(self._front)
            end_ns = step.begin_ns + step_ns + step.out_ns
            row = StepRow(
                epoch.timing.epoch,
                number,
                step.begin_ns - self.origin_ns,
                samples,
                step.spent,
                step_ns,
                load_of_step(step.loads, self.origin_ns),
                loss,
                device_columns(on_device) if on_device else None,
                step.detail,
                self.communication.between(step.begin_ns, end_ns),
            )
            self.sink.steps(row)
