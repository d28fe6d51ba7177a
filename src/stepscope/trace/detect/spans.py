"""The parts of a training while they are assembled: step, epoch, loop candidate.

They hold what was recorded so far; they can be added, cut at a moment and taken out of each other.
`trace.detect.epochs` and `trace.detect.steps` decide where they begin and end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from stepscope.meter.step_rows import EpochTiming, Load

if TYPE_CHECKING:
    from stepscope.meter.device_timeline import DeviceMark

# A loss, or a function that reads it once the device has computed it.
Loss = float | Callable[[], Sequence[float] | float]
# A fetched batch: its samples and its load timing, where known.
Batch = tuple[int | None, Load | None]

# Device time outside the phases of the step: an evaluation.
_TAKEN_OUT = -1


class Moment(NamedTuple):
    """A point in time on both clocks, and the step's totals up to it."""

    time_ns: int
    other_ns: int
    spent: list[int]
    out_ns: int
    out_other_ns: int
    device_laps: int

    def without(self, begin: Moment, end: Moment) -> Moment:
        """Return this moment with the time between two others removed."""
        if self.time_ns <= begin.time_ns:
            return self
        later = self if self.time_ns >= end.time_ns else end
        out_ns = end.time_ns - begin.time_ns - (end.out_ns - begin.out_ns)
        out_other_ns = end.other_ns - begin.other_ns - (end.out_other_ns - begin.out_other_ns)
        return later._replace(
            spent=[
                now - (after - before)
                for now, before, after in zip(later.spent, begin.spent, end.spent, strict=True)
            ],
            out_ns=later.out_ns + out_ns,
            out_other_ns=later.out_other_ns + out_other_ns,
        )


class Step:
    """A step, or its tail: what came after its last update so far.

    Two are created for every update. A dataclass would call a function for every empty list, so
    this is a plain class.
    """

    __slots__ = (
        "backwards",
        "batches",
        "begin_ns",
        "called_samples",
        "detail",
        "device_begin",
        "device_laps",
        "loads",
        "losses",
        "optimizers",
        "out_ns",
        "out_other_ns",
        "samples",
        "spent",
    )

    def __init__(self, begin_ns: int, detail: str) -> None:
        self.begin_ns = begin_ns
        self.detail = detail
        self.spent = [0, 0, 0, 0, 0, 0]
        # Time taken out of the step for an evaluation, on both clocks.
        self.out_ns = 0
        self.out_other_ns = 0
        self.batches = 0
        self.samples: int | None = None
        # Samples of the first call before each backward pass, for loops without a loader.
        self.called_samples: list[int] = []
        self.losses: list[Loss] = []
        self.loads: list[Load] = []
        self.backwards = 0
        self.optimizers: set[int] = set()
        self.device_begin: DeviceMark | None = None
        self.device_laps: list[tuple[int, DeviceMark]] = []

    def moment(self, time_ns: int, other_ns: int) -> Moment:
        """Return the totals up to now."""
        laps = len(self.device_laps)
        return Moment(time_ns, other_ns, self.spent.copy(), self.out_ns, self.out_other_ns, laps)

    def add(self, later: Step) -> None:
        """Add everything of a later part."""
        self.spent = list(map(add, self.spent, later.spent))
        self.out_ns += later.out_ns
        self.out_other_ns += later.out_other_ns
        self.batches += later.batches
        self.samples = sum_known(self.samples, later.samples)
        self.called_samples += later.called_samples
        self.losses += later.losses
        self.loads += later.loads
        self.backwards += later.backwards
        self.optimizers |= later.optimizers
        self.device_laps += later.device_laps

    def since(self, moment: Moment, detail: str) -> Step:
        """Return a step that began at a moment of this one, with the time since."""
        after = Step(moment.time_ns, detail)
        after.spent = [now - then for now, then in zip(self.spent, moment.spent, strict=True)]
        after.out_ns = self.out_ns - moment.out_ns
        after.out_other_ns = self.out_other_ns - moment.out_other_ns
        after.device_laps = self.device_laps[moment.device_laps :]
        before = self.device_laps[: moment.device_laps]
        after.device_begin = before[-1][1] if before else self.device_begin
        return after

    def cut_at(self, moment: Moment) -> None:
        """Discard the time after a moment of this step."""
        self.spent, self.out_ns = list(moment.spent), moment.out_ns
        self.out_other_ns = moment.out_other_ns
        del self.device_laps[moment.device_laps :]

    def take_out(self, begin: Moment, end: Moment) -> None:
        """Remove the time between two moments of this step."""
        self.spent = [
            before + now - after
            for before, now, after in zip(begin.spent, self.spent, end.spent, strict=True)
        ]
        # Time that was taken out earlier, after these moments, stays out.
        self.out_ns += end.time_ns - begin.time_ns - (end.out_ns - begin.out_ns)
        self.out_other_ns += end.other_ns - begin.other_ns - (end.out_other_ns - begin.out_other_ns)
        for lap in range(begin.device_laps, end.device_laps):
            self.device_laps[lap] = (_TAKEN_OUT, self.device_laps[lap][1])

    def take_batch(self, batch: Batch) -> None:
        """Add a batch to this step."""
        samples, load = batch
        self.samples = sum_known(self.samples, samples)
        if load is not None:
            self.loads.append(load)

    def trained_samples(self) -> int | None:
        """Return the fetched samples or, if none were fetched, those of the model's calls.

        Return None if neither is known: without detail, calls are not recorded.
        """
        if self.samples is not None or not self.called_samples:
            return self.samples
        one_optimizer = len(self.optimizers) == 1
        return sum(self.called_samples if one_optimizer else self.called_samples[:1])

    def read_loss(self) -> float | None:
        """Return the sum of the losses: in a step with several, they are parts of one."""
        return read_losses(self.losses)

    def is_over_on_device(self) -> bool:
        """Return whether the device has completed the step."""
        return not self.device_laps or self.device_laps[-1][1].reached()

    def device_seconds(self) -> Iterable[tuple[int, float]]:
        """Yield phases and their device time. The device must have completed the step."""
        begin = self.device_begin
        for phase, mark in self.device_laps:
            assert begin is not None
            if phase != _TAKEN_OUT:
                yield phase, begin.seconds_until(mark)
            begin = mark


@dataclass(slots=True)
class LoopCandidate:
    """An iteration, or calls without a loader, that may be training or an evaluation."""

    key: int | None
    begin: Moment
    started: Moment
    # Without a loader it is an evaluation if one of these modules was trained before, or is trained
    # right after it.
    modules: set[int] = field(default_factory=set)
    is_of_trained: bool = False
    last_call: Moment | None = None
    called_with_grad: bool = False
    length: int | None = None
    # The loader, when its iteration began, and when its first and last batch were asked for.
    loader: int | None = None
    made_ns: int = 0
    is_made_here: bool = False  # not continued long after its creation
    first_asked_ns: int = 0
    asked_ns: int = 0
    batches: int = 0
    samples: int | None = None
    fetched: list[Batch] = field(default_factory=list)
    # The number of batches with a module call, and the samples of these calls, where known.
    called_batches: int = 0
    called_samples: int | None = None
    # Without a loader, by module: the number of its calls and their samples.
    _tested: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    _is_called: bool = True
    _is_ahead: bool = False

    @property
    def used(self) -> bool:
        """Whether it is more than an iterator that was created."""
        return self.key is None or self.batches > 0

    @property
    def is_evaluation(self) -> bool:
        """Whether modules were called in it, and never with gradients."""
        return self.last_call is not None and not self.called_with_grad

    @property
    def is_whole(self) -> bool:
        """Whether its loader has given all of its batches, where their number is known."""
        return self.length is None or self.batches >= self.length

    @property
    def has_one_left(self) -> bool:
        """Whether its last batch is still to be used: its loop is one batch behind."""
        return self.is_evaluation and self._is_ahead and self.called_batches == self.batches - 1

    def take_batch(self, batch: Batch) -> None:
        """Keep a batch until its purpose is known."""
        self.batches += 1
        self.samples = sum_known(self.samples, batch[0])
        self.fetched.append(batch)
        self._is_ahead |= self.batches == 2 and not self.called_batches
        self._is_called = False

    def take_call(self, module: int, samples: int | None) -> None:
        """Count a module's call with the last batch or the one before it."""
        self.modules.add(module)
        if not self._is_called:
            self._is_called = True
            self.called_batches += 1
            self.called_samples = sum_known(self.called_samples, samples)

    def take_test(self, module: int, samples: int | None, usual: int | None) -> None:
        """Count a module's call without a loader: each call is a batch.

        Where a module continues with the output of another, as a decoder does, only one of them
        counts: the `usual` one, or else the first with known samples.
        """
        self.modules.add(module)
        calls, earlier = self._tested.get(module, (0, None))
        self._tested[module] = (calls + 1, sum_known(earlier, samples))
        countable = [each for each, (_, known) in self._tested.items() if known is not None]
        which = usual if usual in countable else (countable or [*self._tested])[0]
        self.batches, self.samples = self._tested[which]

    def leave_unused(self) -> None:
        """Discard batches after the last call: the loop was interrupted there."""
        del self.fetched[self.called_batches :]
        self.batches = len(self.fetched)
        known = [samples for samples, _ in self.fetched if samples is not None]
        self.samples = sum(known) if known else None


@dataclass(slots=True)
class Epoch:
    """An epoch of the training, so far."""

    timing: EpochTiming
    begin_other_ns: int
    # The loaders that it trains with. It ends with the first. None without a loader.
    first_key: int | None = None
    keys: set[int] = field(default_factory=set)
    # When another loader joined the first, and possible outer loaders: if one of them is asked for
    # its next batch when an inner loader has ended, that was not the end of the epoch.
    joined_ns: int = 0
    around: set[int] = field(default_factory=set)
    # Loaders beside the first that gave batches, in any iteration.
    drawn_from: set[int] = field(default_factory=set)
    # The batches left in the first loader, where known.
    batches_left: int | None = None
    loader: int | None = None
    asked_ns: int = 0
    out_other_ns: int = 0
    steps: int = 0
    data_ns: int = 0
    steps_ns: int = 0
    ended: Moment | None = None
    remnant: Moment | None = None
    loss_sum: float = 0.0
    loss_samples: int = 0
    _losses: float = 0.0  # the sum over steps with unknown samples
    _steps: int = 0

    @property
    def may_go_on(self) -> bool:
        """Whether it ended inside an outer loader that may have another batch."""
        return self.ended is not None and bool(self.around)

    def take_losses(self, losses: Sequence[float | None], samples: Sequence[int | None]) -> None:
        """Add the losses of steps to that of the epoch."""
        for loss, weight in zip(losses, samples, strict=True):
            if loss is not None and weight is None:
                self._losses += loss
                self._steps += 1
            elif loss is not None and weight is not None:
                self.loss_sum += loss * weight
                self.loss_samples += weight

    @property
    def loss(self) -> float | None:
        """The mean over samples, or over steps if no samples are known."""
        if not self.loss_samples:
            return self._losses / self._steps if self._steps else None
        return self.loss_sum / self.loss_samples


def is_anew(earlier: LoopCandidate | Epoch, later: LoopCandidate) -> bool:
    """Return whether a loader was restarted after its batches were inspected or abandoned."""
    known = later.loader is not None and earlier is not later
    return known and earlier.loader == later.loader and earlier.asked_ns < later.made_ns


def is_left(earlier: LoopCandidate, later: LoopCandidate, after_ns: int) -> bool:
    """Return whether a loader was only inspected, or is outside one that began since."""
    return later.is_made_here and 0 < earlier.asked_ns < later.made_ns - after_ns


def read_losses(losses: Iterable[Loss | None]) -> float | None:
    """Return the sum of the known losses."""
    known = [value_of(loss) for loss in losses if loss is not None]
    return sum(known, 0.0) if known else None


def value_of(loss: Loss) -> float:
    """Read a loss, on whichever device it is."""
    value = loss() if callable(loss) else loss
    return float(value if isinstance(value, float | int) else value[0])


def sum_known(one: int | None, other: int | None) -> int | None:
    """Return the sum of the known values."""
    if one is None or other is None:
        return one if other is None else other
    return one + other
