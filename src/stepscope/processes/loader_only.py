"""Run the loader of a training without its network: batches are loaded, copied and dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from stepscope.data.dataset import Split
from stepscope.data.loaders.worker_pool import WorkerPool
from stepscope.data.object_store.bucket import StoredSplit
from stepscope.memory_forecast.fit_check import FitCheck
from stepscope.meter.clock import now_ns, other_clock_ns, seconds
from stepscope.meter.device_timeline import queue_of
from stepscope.meter.step_meter import StepMeter, measure_overhead
from stepscope.meter.step_rows import DATA, TRANSFER, EpochTiming, epoch_values
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.types import TrainingResult
from stepscope.settings import RunSpec
from stepscope.train import split_loaders
from stepscope.train.accuracy import AccuracyCounter
from stepscope.train.checkpoint import forget_rows_after
from stepscope.train.device import memory_format_of
from stepscope.train.epoch_plan import Position
from stepscope.train.recorder import Recorder, RunMessages, Tally
from stepscope.train.split_loaders import LoadedSplit, open_split, plan
from stepscope.train.stop_request import StopRequest
from stepscope.train.training_setup import prepare_process

KIND = "load"

_NO_NETWORK = "nothing was trained: the loader ran alone"


def load(
    spec: RunSpec, messages: RunMessages, stop: StopRequest
) -> tuple[TrainingResult, Exception | None]:
    """Run all epochs of the training loader; return its figures and the error that ended it."""
    began_ns = now_ns()
    without = ("train_accuracy", "test_accuracy", "test_top5", "validation_accuracy", "layers")
    absent = dict.fromkeys((*without, "flops", "counters"), _NO_NETWORK)
    result: TrainingResult = {"absent": absent}
    messages.send({"type": "forecast", "forecast": FitCheck(reason=_NO_NETWORK).to_json()})
    prepare_process(spec)
    listeners = split_loaders.listeners_of(messages, stop)
    worker_pool = WorkerPool(spec.workers, listeners.on_fallback)
    try:
        data_dir = Path(spec.data_dir).resolve()
        train = open_split(spec, "train", data_dir, worker_pool, listeners)
        stages = plan(spec, train, evaluation_split=None)
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
    train: LoadedSplit,
    meter: StepMeter,
    stop: StopRequest,
    timing: EpochTiming,
    last: int,
) -> int:
    """Load up to step `last`, as `loop.train_epoch` does; return the last finished step."""
    memory_format, device = memory_format_of(spec), torch.device(spec.device)
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
            images = images.to(device, memory_format=memory_format, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
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
