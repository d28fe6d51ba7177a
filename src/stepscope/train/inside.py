"""A look inside: a few steps in the middle of the run with hooks on every layer, or with counters.

They lie within one epoch, so that no test falls between them, and leave at least one step of it on
either side. Their rows have the detail `layers` or `counters`, and take no part in the figures of
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from stepscope.measure.rows import OTHER
from stepscope.measure.steps import StepMeter
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


class Window(Protocol):
    """Something that looks while it is open."""

    def open(self) -> None:
        """Begin to look."""

    def close(self) -> None:
        """Stop looking."""


W = TypeVar("W", bound=Window, covariant=True)


@dataclass
class InsideView(Generic[W]):
    """Open a window and close it at its place; `detail` marks the steps in between."""

    place: Place
    window: W
    meter: StepMeter
    detail: str = schema.LAYERS
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
            self.meter.detail = self.detail
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

    @property
    def seen_steps(self) -> int:
        """Count the steps that were looked at."""
        return self._seen_steps
