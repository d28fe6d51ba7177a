"""Run one training: build it, load the checkpoint, train and save."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stepscope.hardware.process_memory import trimmed_resident_bytes
from stepscope.memory_forecast.fit_check import FitCheck, check_fit, require_fit
from stepscope.meter.clock import now_ns, seconds
from stepscope.meter.counter_window import open_hardware_counters
from stepscope.meter.device_memory import DevicePool, device_memory_of, host_memory
from stepscope.meter.device_timeline import queue_of
from stepscope.meter.step_meter import StepMeter, measure_overhead
from stepscope.processes import loader_only
from stepscope.processes.process_options import ProcessOptions
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_folder import RunFolder
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import validate
from stepscope.train import checkpoint, device, distributed, loop, split_loaders, training_setup
from stepscope.train.checkpoint import folders_to_rewind, forget_rows_after
from stepscope.train.cold_epochs import cold_epoch_hook
from stepscope.train.distributed import ProcessGroup, fix_summation_order
from stepscope.train.flop_counter import flops_of_step
from stepscope.train.profile_window import seen_inside, view_of
from stepscope.train.rank_consistency import has_unused_parameters
from stepscope.train.recorder import Recorder, RunMessages
from stepscope.train.short_run import shorten
from stepscope.train.stop_request import Send, StopRequest

_NO_FORECAST = "no forecast was made: the run was to begin at once"


def run_session(
    folder: RunFolder,
    origin_ns: int,
    stop: StopRequest,
    send: Send,
    closing: dict[str, Any],
    options: ProcessOptions,
) -> None:
    """Run the training of a folder, from its checkpoint if it has one.

    Adds the figures of the run to `closing`, however the run ends. Raises if the forecast exceeds
    the available memory, unless the options force the run.
    """
    began = now_ns()
    info = folder.read_info()
    spec = device.resolve(validate(info["spec"]))
    process_group = distributed.join(spec) if options.distributed else ProcessGroup()
    messages = RunMessages(folder, origin_ns, send)
    if info["kind"] == loader_only.KIND:
        loader_only.load(spec, messages, stop, closing)
        return
    closing["absent"] = _why_untested(spec)
    # Before compute threads start: counters only include threads that start later.
    counters = open_hardware_counters() if spec.counters else None
    data_dir = Path(spec.data_dir).resolve()  # now: the model may change the working directory
    memory = device_memory_of(torch.device(spec.device), host_memory())
    model = training_setup.build_model(spec, messages.weights)
    forecast = FitCheck(reason=_NO_FORECAST)
    if options.forecast:
        forecast = check_fit(process_group.own_part(spec), model, memory, process_group.world_here)
    send({"type": "forecast", "forecast": forecast.to_json()})
    if not options.force:
        require_fit(forecast)
    before_data_bytes = trimmed_resident_bytes()
    add_listeners = partial(split_loaders.with_listeners, messages=messages, stop=stop)
    built = training_setup.build(
        spec, model, data_dir, messages.fallback, messages.notice, add_listeners, process_group
    )
    process_group.require_alike(built.extent)
    closing["measured_bytes"] = {"dataset": max(0, trimmed_resident_bytes() - before_data_bytes)}
    if info["kind"] == "trial":
        built = shorten(built)
    messages.ready(spec, began, process_group.describe(model, spec.batch_size))
    process_group.seed_apart(spec.seed)
    saved = (folder.path.parents[1] if options.distributed else folder.path) / schema.CHECKPOINT
    start = checkpoint.TrainingProgress(processes=process_group.world)
    if saved.exists():
        start = checkpoint.load(saved, built)
    if start.processes != process_group.world:
        messages.event("processes", before=start.processes, now=process_group.world)
    for tables in folders_to_rewind(
        folder.path, saved.parent, process_group.rank, process_group.world
    ):
        forget_rows_after(tables, built.stages, start.position, spec.accumulate)
    split_loaders.record_downloads(folder.path, built.buckets)
    with ExitStack() as logs:
        logs.callback(built.close)
        if counters is not None:
            logs.callback(counters.close)
        steps, epochs, records = (
            logs.enter_context(CsvLog(folder.path / name))
            for name in (schema.STEPS, schema.EPOCHS, schema.RECORDS)
        )
        pool = None if memory is None else DevicePool(memory)
        recorder = Recorder(
            epochs, records, send, built.stages, spec.accumulate, len(built.train.order), pool
        )
        recorder.processes = process_group.world
        queue = queue_of(built.device)
        meter = StepMeter(steps, origin_ns, queue, recorder.step, recorder.batch)
        has_unused = process_group.world > 1 and has_unused_parameters(spec, model, data_dir)
        wrapped = process_group.wrap(model, meter.gradients_ready, has_unused=has_unused)
        fix_summation_order(spec, wrapped, data_dir, built.device, process_group.world)
        built = replace(built, wrapped=wrapped)
        inside = view_of(built, meter, queue, counters)

        def save(progress: checkpoint.TrainingProgress) -> None:
            if not options.checkpoint:
                return
            for log in (steps, epochs, records):
                log.flush()  # the checkpoint must not be ahead of the rows
            began = now_ns()
            checkpoint.save(saved, built, progress)
            messages.event(
                "checkpoint",
                stage=progress.position.stage,
                step=progress.position.step,
                took_s=round(seconds(now_ns() - began), 6),
            )

        cool = cold_epoch_hook(spec, built.files, messages)
        agreed = process_group.shared_stop(stop)
        watch = loop.LoopHooks(meter, recorder, agreed, messages.elapsed_s, save, inside, cool)
        try:
            loop.train(built, watch, start)
        finally:
            meter.flush()  # record all steps, however the run ended
            closing["instrument"] = measure_overhead(meter)
            closing["requests"] = split_loaders.requests_of(built.buckets.values())
            seen, why_not = seen_inside(inside, spec, counters)
            closing |= seen
            closing["absent"] |= why_not
            if pool is not None:
                closing["device_memory"] = pool.at_end()
            if info["kind"] == "trial":
                closing["absent"]["flops"] = "a trial is not counted"
            else:
                closing["flops"], why_not_counted = flops_of_step(
                    process_group.own_part(spec), model, data_dir
                )
                if why_not_counted is not None:
                    closing["absent"]["flops"] = why_not_counted


def _why_untested(spec: RunSpec) -> dict[str, str]:
    """Return the reasons for accuracies that the run does not measure."""
    of_test = ("test_accuracy", "test_top5")
    if spec.judged_on == "test":
        return {}
    if spec.judged_on == "validation":
        reason = "the run is judged on held-out samples and never opens the test set: --validation"
        return dict.fromkeys(of_test, reason)
    reason = "no test was asked for: --no-evaluate"
    if spec.source == "synthetic":
        reason = "there is nothing to test on: the batches are synthetic"
    held_out = ("validation_accuracy",) if spec.validation else ()
    return dict.fromkeys((*of_test, *held_out), reason)
