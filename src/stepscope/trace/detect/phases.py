"""Assignment of a step's time to phases.

Time belongs to the innermost open span: a fetch, a move, a call. After a call with gradients, time
belongs to the forward pass until the backward pass begins, because the loss is computed there. But
after a backward pass the call may be that of a metric. Then the time is assigned as if there had
been no call, and moved to the forward pass if a backward pass follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from stepscope.meter.step_rows import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, TRANSFER
from stepscope.trace import event_buffer as e
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

    def begin_anew(self) -> None:
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
    def unsure_of(self) -> int | None:
        """The module whose call may have begun a forward pass."""
        return None if self._unsure is None else self._unsure.module

    def go_forward(self, module: int | None, step: Step, *, is_sure: bool) -> None:
        """Begin the forward pass after a call, for sure or if a backward pass follows."""
        self.now = FORWARD if is_sure else self._base
        if not is_sure and (self._unsure is None or self._unsure.step is not step):
            laps = len(step.device_laps)
            self._unsure = _Unsure(module, step, self.now, step.spent[self.now], laps)

    def forget_call(self) -> None:
        """Discard the last call: it did not begin the forward pass."""
        self._unsure = None

    def be_sure(self, step: Step | None) -> None:
        """Move the time since the uncertain call to the forward pass: a backward pass began."""
        unsure, self._unsure = self._unsure, None
        if unsure is not None and unsure.step is step:
            forward_ns = max(0, step.spent[unsure.phase] - unsure.spent_ns)
            step.spent[unsure.phase] -= forward_ns
            step.spent[FORWARD] += forward_ns
            for lap, (phase, mark) in enumerate(step.device_laps):
                if lap >= unsure.device_laps and phase == unsure.phase:
                    step.device_laps[lap] = (FORWARD, mark)
