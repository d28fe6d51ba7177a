"""The profile window: a few steps in the middle of a run with layer hooks or hardware counters.

The window is within one epoch, so that no evaluation interrupts it, and leaves at least one step
on either side. Its rows have the detail `layers` or `counters` and are excluded from the figures of
the other steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepscope.hardware.perf_events import Counters
from stepscope.meter.counter_window import CounterWindow
from stepscope.meter.device_timeline import DeviceQueue
from stepscope.meter.layer_timer import LayerWindow
from stepscope.meter.step_meter import StepMeter
from stepscope.meter.step_rows import OTHER
from stepscope.records import schema
from stepscope.records.types import TrainingResult
from stepscope.settings import RunSpec
from stepscope.train.epoch_plan import Stage, total_steps
from stepscope.train.training_setup import Job

NEVER = -1


@dataclass(frozen=True)
class ProfilePosition:
    """Steps `first` to `last` of an epoch. Epoch 0 has no steps: an empty window."""

    epoch: int = 0
    first: int = 0
    last: int = -1

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.last - self.first + 1


def place_window(stages: Sequence[Stage], most: int) -> ProfilePosition:
    """Return a window of at most `most` steps around the middle step of the run."""
    middle = total_steps(list(stages)) // 2
    for stage in stages:
        if middle < stage.steps:
            steps = min(most, stage.steps - 2)
            if steps < 1:
                break
            first = min(max(middle + 1 - steps // 2, 2), stage.steps - steps)
            return ProfilePosition(stage.epoch, first, first + steps - 1)
        middle -= stage.steps
    return ProfilePosition()


@dataclass
class InsideView:
    """Open and close a window at its position; `detail` marks the rows in between."""

    place: ProfilePosition
    window: CounterWindow | LayerWindow
    meter: StepMeter
    detail: str = schema.LAYERS
    seen_steps: int = field(default=0, init=False)
    _opened_after: int | None = field(default=None, init=False)

    def begin(self, epoch: int, done: int) -> int:
        """Return the step of this epoch after which to open the window, or `NEVER`.

        A run that was stopped inside the window keeps its measurements and does not reopen it.
        """
        before = self.place.first - 1
        if epoch != self.place.epoch or done > before:
            return NEVER
        return before if done < before else self.switch(done)

    def switch(self, step: int) -> int:
        """Open or close the window after a step; return the step of the next switch."""
        if self._opened_after is None:
            self.window.open()
            self._opened_after = step
            self.meter.detail = self.detail
            return self.place.last
        self.end(step)
        self.meter.lap(OTHER)  # keeps this time out of the next step's wait for data
        return NEVER

    def end(self, step: int) -> None:
        """Close the window after a step, if it is open."""
        if self._opened_after is not None:
            self.window.close()
            self.meter.detail = schema.FULL
            self.seen_steps = step - self._opened_after
            self._opened_after = None


def view_of(
    job: Job, meter: StepMeter, queue: DeviceQueue | None, counters: Counters | None
) -> InsideView:
    """Return a view of the hardware counters if they are open, otherwise of the layers."""
    if counters is not None and counters.descriptors:
        place = place_window(job.stages, job.spec.counters)
        return InsideView(place, CounterWindow(counters.read, meter), meter, schema.COUNTERS)
    place = place_window(job.stages, job.spec.layers)
    return InsideView(place, LayerWindow([("", job.model)], queue), meter)


def seen_inside(view: InsideView, spec: RunSpec, counters: Counters | None) -> TrainingResult:
    """Return the results of the window, and in `absent` the reasons for missing ones."""
    absent = {}
    if counters is not None and not counters.descriptors:
        absent["counters"] = "; ".join(sorted(set(counters.absent.values())))
    wanted = spec.counters if view.detail == schema.COUNTERS else spec.layers
    if wanted and not view.place.steps:
        reason = f"profiling the {view.detail} needs an epoch of 3 steps or more"
        return {"absent": {**absent, view.detail: reason}}
    if not view.seen_steps:
        return {"absent": absent}
    if isinstance(view.window, CounterWindow):
        assert counters is not None, "there is no such window without counters"
        counted = view.window.counts(view.seen_steps, counters.absent)
        return {"counters": counted, "absent": absent}
    layers = view.window.layers(view.seen_steps)
    if not layers:
        absent["layers"] = "the network is compiled or scripted and takes no hooks"
        return {"absent": absent}
    return {"layers": layers, "absent": absent}
