"""What is looked at in the middle of a run, and what is said of it at the end."""

from __future__ import annotations

from typing import Any

from stepscope.measure.counters import Counters, CounterWindow
from stepscope.measure.device import DeviceQueue
from stepscope.measure.layers import LayerWindow
from stepscope.measure.steps import StepMeter
from stepscope.records import schema
from stepscope.spec import RunSpec
from stepscope.train.inside import InsideView, Window, find_place
from stepscope.train.job import Job

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
