"""The parts of a training while they are assembled: steps, epochs, and the phases of their time.

They hold what was recorded so far; a step can be added to another, cut at a moment, and have time
taken out. `trace.detect.steps` and `trace.detect.epochs` decide where they begin and end.

A step's time belongs to the innermost open span: a fetch, a move, a call. After a call with
gradients, time belongs to the forward pass until the backward pass begins, because the loss is
computed there. But after a backward pass the call may be that of a metric. Then the time is
assigned as if there had been no call, and moved to the forward pass if a backward pass follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from stepscope.meter.step_rows import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    TRANSFER,
    EpochTiming,
    Load,
    spent_by_lap,
)
from stepscope.trace import event_buffer as e

if TYPE_CHECKING:
    from stepscope.meter.device_timeline import DeviceMark

# A loss, or a function that reads it once the device has computed it.
Loss = float | Callable[[], float | None]
# A fetched batch: its samples and its load timing, where known.
Batch = tuple[int | None, Load | None]

# Device time outside the phases of the step: an evaluation.
_TAKEN_OUT = -1

_PHASE_OF = {
    e.ITERATE: DATA,
    e.FETCH: DATA,
    e.MOVE: TRANSFER,
    e.CALL: FORWARD,
    e.BACKWARD: BACKWARD,
    e.STEP: OPTIMIZER,
    e.ZERO: OPTIMIZER,
    e.OWN: OTHER,
}


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
        self.has_gap = False  # whether marks of the device are missing

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
        self.has_gap |= later.has_gap

    def since(self, moment: Moment, detail: str) -> Step:
        """Return a step that began at a moment of this one, with the time since."""
        after = Step(moment.time_ns, detail)
        after.spent = [now - then for now, then in zip(self.spent, moment.spent, strict=True)]
        after.out_ns = self.out_ns - moment.out_ns
        after.out_other_ns = self.out_other_ns - moment.out_other_ns
        after.device_laps = self.device_laps[moment.device_laps :]
        before = self.device_laps[: moment.device_laps]
        after.device_begin = before[-1][1] if before else self.device_begin
        after.has_gap = self.has_gap
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

    def is_over_on_device(self) -> bool:
        """Return whether the device has completed the step."""
        return all(mark.reached() for _, mark in reversed(self.device_laps))

    def device_seconds(
        self, before: DeviceMark | None
    ) -> tuple[list[tuple[int, float]], DeviceMark | None]:
        """Return phases and their device time, and the mark that was reached last.

        The device must have completed the step. `before` is the mark that was reached last in the
        step before: not necessarily the one that was placed last.
        """
        begin = self.device_begin
        if begin is not None and before is not None and begin.seconds_until(before) > 0:
            begin = before
        if self.has_gap:
            return [], None
        spent, last = spent_by_lap(begin, self.device_laps)
        return [(phase, spent_s) for phase, spent_s in spent if phase != _TAKEN_OUT], last


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
    outer_keys: set[int] = field(default_factory=set)
    # Loaders beside the first that gave batches, in any iteration.
    drawn_from: set[int] = field(default_factory=set)
    # The batches left in the first loader, where known.
    batches_left: int | None = None
    loader: int | None = None
    asked_ns: int = 0
    out_other_ns: int = 0
    data_ns: int = 0
    steps_ns: int = 0
    ended: Moment | None = None
    remnant: Moment | None = None
    loss_sum: float = 0.0
    loss_samples: int = 0
    _losses: float = 0.0  # the sum over steps with unknown samples
    _steps: int = 0

    @property
    def may_continue(self) -> bool:
        """Whether it ended inside an outer loader that may have another batch."""
        return self.ended is not None and bool(self.outer_keys)

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


class _Unsure(NamedTuple):
    """A call that may have begun a forward pass.

    `phase` is the phase to which time is assigned meanwhile, `spent_ns` and `device_laps` are what
    that phase and the device had at the call.
    """

    module: int | None
    step: Step
    phase: int
    spent_ns: int
    device_laps: int


@dataclass(slots=True)
class Phases:
    """The open phase (`now`) and the number of open updates: a closure runs inside one."""

    now: int = OTHER
    updating: int = 0
    _open: list[int] = field(default_factory=list)
    _unsure: _Unsure | None = None

    @property
    def _base(self) -> int:
        return OPTIMIZER if self.updating else OTHER

    def reset(self) -> None:
        """Close everything at a fetch: an update that raised never recorded its end."""
        self.now, self.updating, self._unsure = OTHER, 0, None
        self._open.clear()

    def enter(self, kind: int) -> None:
        """Open a span inside the open one."""
        self._open.append(self.now)
        self.now = _PHASE_OF[kind]

    def leave(self) -> None:
        """Close the innermost span and resume the one around it."""
        self.now = self._open.pop() if self._open else self._base

    def leave_to_base(self) -> None:
        """Close the innermost span and those around it."""
        self.leave()
        self.now = self._base

    def begin_update(self) -> None:
        """Begin an optimiser's step: earlier calls are not a forward pass any more."""
        self.forget_call()
        self.updating += 1
        self.enter(e.STEP)

    def end_update(self) -> None:
        """End an optimiser's step.

        It may lie inside a backward pass: some scripts update each weight as soon as its gradient
        is ready.
        """
        self.updating = max(0, self.updating - 1)
        self.leave()
        if self.now != BACKWARD:
            self.now = self._base

    # time after a call

    @property
    def unsure_module(self) -> int | None:
        """The module whose call may have begun a forward pass."""
        return None if self._unsure is None else self._unsure.module

    def begin_forward(self, module: int | None, step: Step, *, is_sure: bool) -> None:
        """Begin the forward pass after a call, for sure or if a backward pass follows."""
        self.now = FORWARD if is_sure else self._base
        if not is_sure and (self._unsure is None or self._unsure.step is not step):
            laps = len(step.device_laps)
            self._unsure = _Unsure(module, step, self.now, step.spent[self.now], laps)

    def forget_call(self) -> None:
        """Discard the last call: it did not begin the forward pass."""
        self._unsure = None

    def confirm_forward(self, step: Step | None) -> None:
        """Move the time since the uncertain call to the forward pass: a backward pass began."""
        unsure, self._unsure = self._unsure, None
        if unsure is not None and unsure.step is step:
            forward_ns = max(0, step.spent[unsure.phase] - unsure.spent_ns)
            step.spent[unsure.phase] -= forward_ns
            step.spent[FORWARD] += forward_ns
            for lap, (phase, mark) in enumerate(step.device_laps):
                if lap >= unsure.device_laps and phase == unsure.phase:
                    step.device_laps[lap] = (FORWARD, mark)


def read_losses(losses: Iterable[Loss | None]) -> float | None:
    """Return the sum of the known losses: in a step with several, they are parts of one."""
    known = [value_of(loss) for loss in losses if loss is not None]
    values = [value for value in known if value is not None]
    return sum(values, 0.0) if values else None


def value_of(loss: Loss) -> float | None:
    """Read a loss, on whichever device it is; None if it was lost."""
    value = loss() if callable(loss) else loss
    return None if value is None else float(value)


def sum_known(one: int | None, other: int | None) -> int | None:
    """Return the sum of the known values."""
    if one is None or other is None:
        return one if other is None else other
    return one + other
