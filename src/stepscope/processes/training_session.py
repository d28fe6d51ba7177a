"""Run one training: build it, load the checkpoint, train and save. Or run its loader alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stepscope.data.dataset import Split
from stepscope.data.loaders.worker_pool import WorkerPool
from stepscope.data.object_store.bucket import StoredSplit
from stepscope.hardware.perf_events import HARDWARE, Counters, open_counters
from stepscope.hardware.process_memory import trimmed_resident_bytes
from stepscope.memory_forecast.fit_check import FitCheck, check_fit, require_fit
from stepscope.meter.clock import now_ns, other_clock_ns, seconds
from stepscope.meter.device_memory import DevicePool, device_memory_of, host_memory
from stepscope.meter.device_timeline import queue_of, why_no_timeline
from stepscope.meter.step_meter import StepMeter, measure_overhead
from stepscope.meter.step_rows import DATA, TRANSFER, EpochTiming, epoch_values
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import TrainingResult
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import validate
from stepscope.train import checkpoint, device, loop, split_loaders, training_setup
from stepscope.train.accuracy import AccuracyCounter
from stepscope.train.checkpoint import (
    CheckpointWriter,
    TrainingProgress,
    folders_to_rewind,
    forget_rows_after,
)
from stepscope.train.epoch_plan import Position
from stepscope.train.flop_counter import flops_of_step
from stepscope.train.profile_window import seen_inside, view_of
from stepscope.train.recorder import Recorder, RunMessages, Tally
from stepscope.train.stop_request import Send, StopRequest
from stepscope.train.training_setup import Job, ProcessGroup, shorten

if TYPE_CHECKING:  # the fork server imports this module, and later runs that one as __main__
    from stepscope.processes.training_process import ProcessOptions

_NO_FORECAST = "the memory forecast was skipped"
_NO_NETWORK = "nothing was trained: the loader ran alone"


def run_session(
    folder: RunFolder, origin_ns: int, stop: StopRequest, send: Send, options: ProcessOptions
) -> tuple[TrainingResult, Exception | None]:
    """Run the training of a folder; return its figures and the error that ended it, if one did."""
    began_ns = now_ns()
    info = folder.read_info()
    spec = device.resolve(validate(info["spec"]))
    messages = RunMessages(folder, origin_ns, send)
    if info["kind"] == "load":
        return _load_only(spec, messages, stop)
    process_group = ProcessGroup()
    if options.distributed:
        from stepscope.train.distributed import join

        process_group = join(spec)
    own_part = process_group.own_part(spec)
    result: TrainingResult = {"absent": _why_not_evaluated(spec)}
    try:
        # Before compute threads start: counters only include threads that start later.
        counters = open_counters(HARDWARE) if spec.counters else None
        data_dir = Path(spec.data_dir).resolve()  # now: the model may change the working directory
        memory = device_memory_of(torch.device(spec.device), host_memory())
        model = training_setup.build_model(spec, messages.weights)
        forecast = FitCheck(reason=_NO_FORECAST)
        if options.forecast:
            forecast = check_fit(own_part, model, memory, process_group.world_here)
        send({"type": "forecast", "forecast": forecast.to_json()})
        if not options.force:
            require_fit(forecast)
        before_data_bytes = trimmed_resident_bytes()
        listeners = split_loaders.listeners_of(messages, stop)
        job = training_setup.build(spec, model, data_dir, listeners, process_group)
        process_group.require_alike(job.extent)
        result["measured_bytes"] = {"dataset": max(0, trimmed_resident_bytes() - before_data_bytes)}
        is_trial = info["kind"] == "trial"
        if is_trial:
            job = shorten(job)
        messages.ready(spec, began_ns, process_group.describe(model, spec.batch_size))
        process_group.seed_apart(spec.seed)
        pool = None if memory is None else DevicePool(memory)
        trained, error = _train(job, messages, stop, options, counters, data_dir, pool)
        absent = {**result["absent"], **trained["absent"]}
        result = {**result, **trained, "absent": absent}
        if pool is not None:
            result["device_memory"] = pool.at_end()
        if is_trial:
            absent["flops"] = "not counted in a trial"
        else:
            result["flops"], why_not_counted = flops_of_step(own_part, model, data_dir)
            if why_not_counted is not None:
                absent["flops"] = why_not_counted
        return result, error
    except Exception as error:
        return result, error


def _train(
    job: Job,
    messages: RunMessages,
    stop: StopRequest,
    options: ProcessOptions,
    counters: Counters | None,
    data_dir: Path,
    pool: DevicePool | None,
) -> tuple[TrainingResult, Exception | None]:
    """Train a job from its checkpoint, if there is one, and record it in its folder."""
    spec, process_group, path = job.spec, job.process_group, messages.folder.path
    result: TrainingResult = {"absent": {}}
    try:
        with ExitStack() as opened:
            opened.callback(job.close)
            if counters is not None:
                opened.callback(counters.close)

            def run() -> Path:
                """Return the folder of the run, where it is now."""
                own = messages.folder.path
                return own.parents[1] if options.distributed else own

            with_rows = [path, *([run()] if process_group.rank == 0 else [])]
            start = checkpoint.load_newest(run(), with_rows, job, messages.went_back)
            _rewind(job, messages, run(), start)
            steps, epochs, records = logs = [
                opened.enter_context(CsvLog(path / name))
                for name in (schema.STEPS, schema.EPOCHS, schema.RECORDS)
            ]
            recorder = Recorder(
                epochs,
                records,
                messages.send,
                job.stages,
                spec.accumulate,
                len(job.train.order),
                pool,
                process_group.world_size,
            )
            queue = queue_of(job.device)
            if queue is None and job.device.type != "cpu":
                result["absent"]["device"] = why_no_timeline(job.device.type)
            meter = StepMeter(steps, messages.origin_ns, queue, recorder.step, recorder.batch)
            network = process_group.wrap(job.spec, job.model, data_dir, meter.gradients_ready)
            job = replace(job, network=network)
            inside = view_of(job, meter, queue, counters)

            checkpoints = CheckpointWriter(run, job, messages.checkpoint)
            opened.callback(checkpoints.close)

            def save(progress: TrainingProgress) -> None:
                if not options.checkpoint:
                    return
                for log in logs:
                    log.flush()  # the checkpoint must not be ahead of the rows
                checkpoints.save(progress)

            hooks = loop.LoopHooks(
                meter,
                recorder,
                process_group.shared_stop(stop),
                messages.elapsed_s,
                save,
                inside,
                split_loaders.cold_epoch_hook(spec, job.files, messages),
            )
            try:
                loop.train(job, hooks, start)
                checkpoints.complete()
            finally:
                meter.flush()  # record all steps, however the run ended
                seen = seen_inside(inside, spec, counters)
                if queue is not None and queue.trouble is not None:
                    result["absent"]["device_events"] = queue.trouble
                result = {
                    "instrument": measure_overhead(meter),
                    "requests": split_loaders.requests_of(job.buckets.values()),
                    **seen,
                    "absent": {**result["absent"], **seen["absent"]},
                }
    except Exception as error:
        return result, error
    return result, None


def _rewind(job: Job, messages: RunMessages, run: Path, start: TrainingProgress) -> None:
    """Drop the rows after the position that the training starts from."""
    own, process_group = messages.folder.path, job.process_group
    if start.processes != process_group.world_size:
        messages.event("processes", before=start.processes, now=process_group.world_size)
    for tables in folders_to_rewind(own, run, process_group.rank, process_group.world_size):
        forget_rows_after(tables, job.stages, start.position, job.spec.accumulate)
    split_loaders.record_downloads(own, job.buckets)


def _why_not_evaluated(spec: RunSpec) -> dict[str, str]:
    """Return the reasons for accuracies that the run does not measure."""
    missing = ["test_accuracy", "test_top5"]
    if spec.evaluation_split == "test":
        return {}
    if spec.evaluation_split == "validation":
        reason = "the run is evaluated on held-out samples, not on the test set: --validation"
        return dict.fromkeys(missing, reason)
    if spec.validation:
        missing.append("validation_accuracy")
    reason = "no evaluation: --no-evaluate"
    if spec.source == "synthetic":
        reason = "no evaluation: the batches are synthetic"
    return dict.fromkeys(missing, reason)


# --- The loader alone


def _load_only(
    spec: RunSpec, messages: RunMessages, stop: StopRequest
) -> tuple[TrainingResult, Exception | None]:
    """Run the loader without the network: batches are loaded, copied and dropped."""
    began_ns = now_ns()
    without = ("train_accuracy", "test_accuracy", "test_top5", "validation_accuracy", "layers")
    absent = dict.fromkeys((*without, "flops", "counters"), _NO_NETWORK)
    result: TrainingResult = {"absent": absent}
    messages.send({"type": "forecast", "forecast": FitCheck(reason=_NO_NETWORK).to_json()})
    training_setup.prepare_process(spec)
    listeners = split_loaders.listeners_of(messages, stop)
    worker_pool = WorkerPool(spec.workers, listeners.on_fallback)
    try:
        data_dir = Path(spec.data_dir).resolve()
        train = split_loaders.open_split(spec, "train", data_dir, worker_pool, listeners)
        stages = split_loaders.plan(spec, train, evaluation_split=None)
        messages.ready(spec, began_ns)
        path = messages.folder.path
        forget_rows_after(path, stages, Position(), spec.accumulate)
        buckets: dict[Split, StoredSplit] = {"train": train.bucket} if train.bucket else {}
        split_loaders.record_downloads(path, buckets)
        with ExitStack() as opened:
            opened.callback(worker_pool.stop_watching)
            opened.callback(train.loader.close)
            steps, epochs, records = (
                opened.enter_context(CsvLog(path / name))
                for name in (schema.STEPS, schema.EPOCHS, schema.RECORDS)
            )
            recorder = Recorder(
                epochs, records, messages.send, stages, spec.accumulate, len(train.order)
            )
            queue = queue_of(torch.device(spec.device))
            meter = StepMeter(steps, messages.origin_ns, queue, on_step=recorder.batch)
            cool = split_loaders.cold_epoch_hook(spec, train.files, messages)
            try:
                for number, stage in enumerate(stages):
                    recorder.begin(number, 0, Tally(), AccuracyCounter(torch.device(spec.device)))
                    cool(stage.epoch)
                    timing = EpochTiming(stage.epoch, messages.elapsed_s(), time.time())
                    opened_ns = other_clock_ns()  # a second clock, to check the meter
                    finished = _load_epoch(spec, train, meter, stop, timing, stage.steps)
                    timing.total_s = seconds(other_clock_ns() - opened_ns)
                    if finished < stage.steps:
                        stop.check()
                    epochs.append(",".join(epoch_values("train", timing, loss=None).values()))
                    epochs.flush()
                    recorder.report_progress(finished, timing)
                    if number + 1 < len(stages):  # after the last stage a request is too late
                        stop.check()
            finally:
                meter.flush()
                result["instrument"] = measure_overhead(meter)
                result["requests"] = split_loaders.requests_of(buckets.values())
    except Exception as error:
        return result, error
    return result, None


def _load_epoch(
    spec: RunSpec,
    train: split_loaders.LoadedSplit,
    meter: StepMeter,
    stop: StopRequest,
    timing: EpochTiming,
    last: int,
) -> int:
    """Load up to step `last`, as `loop.train_epoch` does; return the last finished step."""
    memory_format, on = device.memory_format_of(spec), torch.device(spec.device)
    train.order.epoch = timing.epoch
    step, left = 0, len(train.order)

    meter.open_epoch(timing)
    batches: Iterator[Any] = iter(train.loader)
    meter.loader_started()
    while step < last:
        loaded = None
        with stop:  # a request ends the wait for a batch
            loaded = None if stop.requested else next(batches, None)
        if loaded is None:
            break
        samples = 0
        for _ in range(min(spec.accumulate, left)):
            (images, labels), load_timing = loaded or next(batches)
            loaded = None
            meter.lap(DATA)
            meter.loaded(load_timing)
            images = images.to(on, memory_format=memory_format, non_blocking=True)
            labels = labels.to(on, non_blocking=True)
            meter.lap(TRANSFER)
            samples += len(labels)
            left -= 1
        step += 1
        meter.end_step(step, samples, None)
    if step == last:
        next(batches, None)  # the loader ends its workers at the end of the epoch
    del batches
    meter.close_epoch()
    return step
