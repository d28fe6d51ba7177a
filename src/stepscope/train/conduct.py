"""Put a training together and see it through: build, take up the checkpoint, train, save."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.data.crew import Fallback
from stepscope.measure.clock import now_ns, seconds
from stepscope.measure.device import queue_of
from stepscope.measure.layers import LayerWindow
from stepscope.measure.own_memory import resident_bytes
from stepscope.measure.steps import StepMeter, weigh_instrument
from stepscope.records import schema
from stepscope.records.csvlog import CsvLog
from stepscope.records.folder import RunFolder
from stepscope.spec.load import validate
from stepscope.train import checkpoint, device, job, loop
from stepscope.train.foretell import foretell, refuse_what_does_not_fit
from stepscope.train.inside import InsideView, find_place
from stepscope.train.lifetime import Send, StopRequest
from stepscope.train.recorder import Recorder
from stepscope.train.rewind import forget_rows_after
from stepscope.train.shorten import shorten


def conduct(
    folder: RunFolder,
    origin_ns: int,
    stop: StopRequest,
    send: Send,
    closing: dict[str, Any],
    *,
    force: bool,
) -> None:
    """Train what the folder asks for, from its checkpoint where it has one, to the end.

    What is to be said of the run however it ends is put into `closing`. A run that is forecast not
    to fit is refused, unless `force`.
    """
    began = now_ns()
    info = folder.read_info()
    spec = device.resolve(validate(info["spec"]))

    def elapsed_s() -> float:
        return seconds(now_ns() - origin_ns)

    def tell_fallback(fallback: Fallback) -> None:
        told = asdict(fallback)
        told["from"], told["to"] = told.pop("before"), told.pop("after")
        folder.add_event("workers_fallback", elapsed_s(), **told)
        send({"type": "workers", **told})

    data_dir = Path(spec.data_dir).resolve()  # now: a person's model may change the folder
    model = job.build_model(spec)
    foretold = foretell(spec, model)
    send({"type": "forecast", "forecast": foretold.to_json()})
    if not force:
        refuse_what_does_not_fit(foretold)
    before_data_bytes = resident_bytes()
    built = job.build(spec, model, data_dir, tell_fallback)
    closing["measured_bytes"] = {"dataset": max(0, resident_bytes() - before_data_bytes)}
    if info["kind"] == "trial":
        built = shorten(built)
    send(
        {
            "type": "ready",
            "spec": spec.model_dump(mode="json"),
            "environment": device.describe_torch(built.device),
            "preparation_s": seconds(now_ns() - began),
        }
    )
    saved = folder.path / schema.CHECKPOINT
    start = checkpoint.load(saved, built) if saved.exists() else checkpoint.Progress()
    forget_rows_after(folder.path, built.stages, start.position, spec.accumulate)
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
            for log in (steps, epochs, records):
                log.flush()  # the checkpoint must not be ahead of the rows
            began = now_ns()
            checkpoint.save(saved, built, progress)
            folder.add_event(
                "checkpoint",
                elapsed_s(),
                stage=progress.position.stage,
                step=progress.position.step,
                took_s=round(seconds(now_ns() - began), 6),
            )

        try:
            loop.train(built, loop.Watch(meter, recorder, stop, elapsed_s, save, inside), start)
        finally:
            meter.settle()  # whatever ended the run, the steps before it are in the record
            closing["instrument"] = weigh_instrument(meter)
            closing.update(_seen_inside(inside, spec.layers))


def _seen_inside(inside: InsideView, asked: int) -> dict[str, Any]:
    """State what was seen of the layers or, where there was no room to look, why not."""
    if asked and not inside.place.steps:
        reason = "a look at the layers wants an epoch of 3 steps or more, found fewer"
        return {"absent": {"layers": reason}}
    layers = inside.layers()
    if layers == []:
        return {"absent": {"layers": "the network is compiled or scripted, and takes no hooks"}}
    return {"layers": layers}
