"""A look inside the network: a few steps in the middle of the run with hooks on every layer.

They lie within one epoch, so that no test falls between them, and leave at least one step of it on
either side. Their rows have the detail `layers` and take no part in the figures of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stepscope.measure.layers import LayerWindow
from stepscope.measure.steps import OTHER, StepMeter
from stepscope.records import schema
from stepscope.train.stages import Stage, total_steps

NEVER = -1


@dataclass(frozen=True)
class Place:
    """Steps `first` to `last` of an epoch. Epoch 0 trains nothing: no step at all."""

    epoch: int = 0
    first: int = 0
    last: int = -1

    @property
    def steps(self) -> int:
        """Count the steps."""
        return self.last - self.first + 1


def find_place(stages: Sequence[Stage], asked: int) -> Place:
    """Find room for `asked` steps, or fewer, around the middle step of the run."""
    middle = total_steps(list(stages)) // 2
    for stage in stages:
        if middle < stage.steps:
            steps = min(asked, stage.steps - 2)
            if steps < 1:
                break
            first = min(max(middle + 1 - steps // 2, 2), stage.steps - steps)
            return Place(stage.epoch, first, first + steps - 1)
        middle -= stage.steps
    return Place()


@dataclass(slots=True)
class InsideView:
    """Switch the hooks on and off at their place, and keep what they saw."""

    place: Place
    window: LayerWindow
    meter: StepMeter
    _opened_after: int | None = field(default=None, init=False)
    _seen_steps: int = field(default=0, init=False)

    def begin(self, epoch: int, done: int) -> int:
        """Return the step of this epoch after which to switch first.

        A run that was stopped among these steps keeps what it had seen, and looks no more.
        """
        before = self.place.first - 1
        if epoch != self.place.epoch or done > before:
            return NEVER
        return before if done < before else self.switch(done)

    def switch(self, step: int) -> int:
        """Switch the hooks after a step; return the one after which to switch next."""
        if self._opened_after is None:
            self.window.open()
            self._opened_after = step
            self.meter.detail = schema.LAYERS
            return self.place.last
        self.end(step)
        self.meter.lap(OTHER)  # the next step counts, and this is no wait for data
        return NEVER

    def end(self, step: int) -> None:
        """Take the hooks off after a step, if they are still on."""
        if self._opened_after is not None:
            self.window.close()
            self.meter.detail = schema.FULL
            self._seen_steps = step - self._opened_after
            self._opened_after = None

    def layers(self) -> list[dict[str, Any]] | None:
        """Return what a step spent in each layer; None where no step was looked at."""
        return self.window.layers(self._seen_steps) if self._seen_steps else None
