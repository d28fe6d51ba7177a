"""Which phase the time of a step counts with, by what is open: a fetch, a move, a call.

What follows a call with gradients is the forward pass too, until the backward pass: the loss is
computed there. But after a backward pass a metric may be called, and what follows that is something
else. So it counts with what would be open without it, and is given to the forward pass when a
backward pass comes after all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from stepscope.meter.step_rows import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, TRANSFER
from stepscope.trace.detect import events as e
from stepscope.trace.detect.spans import Step

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


class _Unsure(NamedTuple):
    """After a module's call in a step: the phase that time counts with, and what that had then.

    `device_laps` are those that the device had then.
    """

    module: int | None
    step: Step
    phase: int
    spent_ns: int
    device_laps: int


@dataclass(slots=True)
class Phases:
    """The phase that is open `now`, and how many updates are under way: a closure is in one."""

    now: int = OTHER
    updating: int = 0
    _open: list[int] = field(default_factory=list)
    _unsure: _Unsure | None = None

    @property
    def _base(self) -> int:
        return OPTIMIZER if self.updating else OTHER

    def begin_anew(self) -> None:
        """A batch is fetched: nothing is open. An update that raised never said that it ended."""
        self.now, self.updating, self._unsure = OTHER, 0, None
        self._open.clear()

    def enter(self, kind: int) -> None:
        """Something begins, inside of what is open."""
        self._open.append(self.now)
        self.now = _PHASE_OF[kind]

    def leave(self) -> None:
        """It ends, and what it was inside of goes on."""
        self.now = self._open.pop() if self._open else self._base

    def leave_to_base(self) -> None:
        """It ends, and what it was inside of is over too."""
        self.leave()
        self.now = self._base

    def begin_update(self) -> None:
        """An optimiser steps: what was called before is no forward pass any more."""
        self.forget_call()
        self.updating += 1
        self.enter(e.STEP)

    def end_update(self) -> None:
        """It has stepped. Some update each weight as soon as it has its gradient."""
        self.updating = max(0, self.updating - 1)
        self.leave()
        if self.now != BACKWARD:
            self.now = self._base

    # what follows a call

    @property
    def unsure_of(self) -> int | None:
        """The module of which it is not known whether its call began a forward pass."""
        return None if self._unsure is None else self._unsure.module

    def go_forward(self, module: int | None, step: Step, *, is_sure: bool) -> None:
        """Let what follows a call be the forward pass, for sure or if a backward pass follows."""
        self.now = FORWARD if is_sure else self._base
        if not is_sure and (self._unsure is None or self._unsure.step is not step):
            laps = len(step.device_laps)
            self._unsure = _Unsure(module, step, self.now, step.spent[self.now], laps)

    def forget_call(self) -> None:
        """No backward pass follows the last call, or another one begins the forward pass."""
        self._unsure = None

    def be_sure(self, step: Step | None) -> None:
        """There is a backward pass: what followed the call before it was the forward pass."""
        unsure, self._unsure = self._unsure, None
        if unsure is not None and unsure.step is step:
            forward_ns = max(0, step.spent[unsure.phase] - unsure.spent_ns)
            step.spent[unsure.phase] -= forward_ns
            step.spent[FORWARD] += forward_ns
            for lap, (phase, mark) in enumerate(step.device_laps):
                if lap >= unsure.device_laps and phase == unsure.phase:
                    step.device_laps[lap] = (FORWARD, mark)
