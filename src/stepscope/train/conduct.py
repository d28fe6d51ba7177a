"""Put a training together and see it through: build, take up the checkpoint, train, save."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.measure.clock import now_ns, seconds
from stepscope.measure.device import queue_of
from stepscope.measure.layers import LayerWindow
from stepscope.measure.own_memory import resident_bytes
from stepscope.measure.steps import StepMeter, weigh_instrument
from stepscope.records import schema
from stepscope.records.csvlog import CsvLog
from stepscope.records.folder import RunFolder
from stepscope.spec import RunSpec
from stepscope.spec.load import validate
from stepscope.train import checkpoint, device, from_store, job, load_only, loop
from stepscope.train.cold import cooling
from stepscope.train.foretell import Foretold, foretell, refuse_what_does_not_fit
from stepscope.train.inside import InsideView, find_place
from stepscope.train.lifetime import Send, StopRequest
from stepscope.train.options import Options
from stepscope.train.recorder import Recorder
from stepscope.train.rewind import forget_rows_after
from stepscope.train.shorten import shorten
from stepscope.train.telling import Telling

_NO_FORECAST = "no forecast was made: the run was to begin at once"


def conduct(
    folder: RunFolder,
    origin_ns: int,
    stop: StopRequest,
    send: Send,
    closing: dict[str, Any],
    options: Options,
) -> None:
    """Train what the folder asks for, from its checkpoint where it has one, to the end.

    What is to be said of the run however it ends is put into `closing`. A run that is forecast not
    to fit is refused, unless the options force it.
    """
    began = now_ns()
    info = folder.read_info()
    spec = device.resolve(validate(info["spec"]))
    telling = Telling(folder, origin_ns, send)
    if info["kind"] == load_only.KIND:
        load_only.load(spec, telling, stop, closing)
        return
    closing["absent"] = _why_untested(spec)
    data_dir = Path(spec.data_dir).resolve()  # now: a person's model may change the folder
    model = job.build_model(spec, telling.weights)
    foretold = foretell(spec, model) if options.forecast else Foretold(reason=_NO_FORECAST)
    send({"type": "forecast", "forecast": foretold.to_json()})
    if not options.force:
        refuse_what_does_not_fit(foretold)
    before_data_bytes = resident_bytes()
    hear = partial(from_store.told_of, telling=telling, stop=stop)
    built = job.build(spec, model, data_dir, telling.fallback, telling.notice, hear)
    closing["measured_bytes"] = {"dataset": max(0, resident_bytes() - before_data_bytes)}
    if info["kind"] == "trial":
        built = shorten(built)
    telling.ready(spec, began)
    saved = folder.path / schema.CHECKPOINT
    start = checkpoint.load(saved, built) if saved.exists() else checkpoint.Progress()
    forget_rows_after(folder.path, built.stages, start.position, spec.accumulate)
    from_store.record_downloads(folder.path, built.buckets)
    with ExitStack() as logs:
        logs.callback(built.close)
        steps, epochs, records = (
            logs.enter_context(CsvLog(folder.path / name))
            for name in (schema.STEPS, schema.EPOCHS, schema.RECORDS)
        )
        recorder = Recorder(
            epochs, records, send, built.stages, spec.accumulate, len(built.train.order)
        )
        queue = queue_of(built.device)
        meter = StepMeter(steps, origin_ns, queue, recorder.step, recorder.batch)
        inside = InsideView(
            find_place(built.stages, spec.layers), LayerWindow([("", built.model)], queue), meter
        )

        def save(progress: checkpoint.Progress) -> None:
            if not options.checkpoint:
                return
            for log in (steps, epochs, records):
                log.flush()  # the checkpoint must not be ahead of the rows
            began = now_ns()
            checkpoint.save(saved, built, progress)
            telling.event(
                "checkpoint",
                stage=progress.position.stage,
                step=progress.position.step,
                took_s=round(seconds(now_ns() - began), 6),
            )

        cool = cooling(spec, built.files, telling)
        watch = loop.Watch(meter, recorder, stop, telling.elapsed_s, save, inside, cool)
        try:
            loop.train(built, watch, start)
        finally:
            meter.settle()  # whatever ended the run, the steps before it are in the record
            closing["instrument"] = weigh_instrument(meter)
            closing["requests"] = from_store.requests_of(built.buckets.values())
            closing["layers"], why_not = _seen_inside(inside, spec.layers)
            closing["absent"] |= why_not


def _why_untested(spec: RunSpec) -> dict[str, str]:
    """State why a run without tests has none."""
    if spec.evaluate:
        return {}
    reason = "no test was asked for: --no-evaluate"
    if spec.source == "synthetic":
        reason = "there is nothing to test on: the batches are synthetic"
    return dict.fromkeys(("test_accuracy", "test_top5"), reason)


def _seen_inside(
    inside: InsideView, asked: int
) -> tuple[list[dict[str, Any]] | None, dict[str, str]]:
    """Return what was seen of the layers and, where there was no room to look, why not."""
    if asked and not inside.place.steps:
        reason = "a look at the layers wants an epoch of 3 steps or more, found fewer"
        return None, {"layers": reason}
    layers = inside.layers()
    if layers == []:
        return None, {"layers": "the network is compiled or scripted, and takes no hooks"}
    return layers, {}
