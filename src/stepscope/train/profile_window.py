"""A look inside: a few steps in the middle of the run with hooks on every layer, or with counters.

They lie within one epoch, so that no test falls between them, and leave at least one step of it on
either side. Their rows have the detail `layers` or `counters`, and take no part in the figures of
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from stepscope.meter.counter_window import Counters, CounterWindow
from stepscope.meter.device_timeline import DeviceQueue
from stepscope.meter.layer_timer import LayerWindow
from stepscope.meter.step_meter import StepMeter
from stepscope.meter.step_rows import OTHER
from stepscope.records import schema
from stepscope.settings import RunSpec
from stepscope.train.epoch_plan import Stage, total_steps
from stepscope.train.training_setup import Job

NEVER = -1


@dataclass(frozen=True)
class ProfilePosition:
    """Steps `first` to `last` of an epoch. Epoch 0 trains nothing: no step at all."""

    epoch: int = 0
    first: int = 0
    last: int = -1

    @property
    def steps(self) -> int:
        """Count the steps."""
        return self.last - self.first + 1


def find_place(stages: Sequence[Stage], asked: int) -> ProfilePosition:
    """Find room for `asked` steps, or fewer, around the middle step of the run."""
    middle = total_steps(list(stages)) // 2
    for stage in stages:
        if middle < stage.steps:
            steps = min(asked, stage.steps - 2)
            if steps < 1:
                break
            first = min(max(middle + 1 - steps // 2, 2), stage.steps - steps)
            return ProfilePosition(stage.epoch, first, first + steps - 1)
        middle -= stage.steps
    return ProfilePosition()


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

    place: ProfilePosition
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


# --- What is looked at in the middle of a run, and what is said of it at the end


# What was seen, by its name in the summary, and why something was not.
Seen = tuple[dict[str, Any], dict[str, str]]


def view_of(
    job: Job, meter: StepMeter, queue: DeviceQueue | None, counters: Counters | None
) -> InsideView[Window]:
    """Choose what to look at: the processor's counters where they are open, else the layers."""
    if counters is not None and counters.descriptors:
        place = find_place(job.stages, job.spec.counters)
        return InsideView(place, CounterWindow(counters.read, meter), meter, schema.COUNTERS)
    place = find_place(job.stages, job.spec.layers)
    return InsideView(place, LayerWindow([("", job.model)], queue), meter)


def seen_inside(view: InsideView[Window], spec: RunSpec, counters: Counters | None) -> Seen:
    """Return what was seen, and where there was nothing to see, why not."""
    absent = {}
    if counters is not None and not counters.descriptors:
        absent["counters"] = "; ".join(sorted(set(counters.absent.values())))
    asked = spec.counters if view.detail == schema.COUNTERS else spec.layers
    if asked and not view.place.steps:
        reason = f"a look at the {view.detail} wants an epoch of 3 steps or more, found fewer"
        return {}, {**absent, view.detail: reason}
    if not view.seen_steps:
        return {}, absent
    if isinstance(view.window, CounterWindow):
        assert counters is not None, "there is no such window without counters"
        counted = view.window.counts(view.seen_steps)
        return {"counters": {**counted, "absent": dict(counters.absent)}}, absent
    assert isinstance(view.window, LayerWindow), "there are two kinds of windows"
    layers = view.window.layers(view.seen_steps)
    if not layers:
        return {}, {**absent, "layers": "the network is compiled or scripted, and takes no hooks"}
    return {"layers": layers}, absent
