"""The training loop. Everything that happens to a weight happens on this page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from stepscope.hardware.process_memory import give_back
from stepscope.meter.clock import now_ns, other_clock_ns, seconds
from stepscope.meter.step_meter import StepMeter
from stepscope.meter.step_rows import (
    BACKWARD,
    DATA,
    FORWARD,
    OPTIMIZER,
    TRANSFER,
    EpochTiming,
    LoadTiming,
)
from stepscope.train.accuracy import AccuracyCounter
from stepscope.train.checkpoint import TrainingProgress
from stepscope.train.device import autocast_of, memory_format_of
from stepscope.train.epoch_plan import Position
from stepscope.train.profile_window import InsideView
from stepscope.train.recorder import Recorder, Tally
from stepscope.train.stop_request import StopRequest
from stepscope.train.training_setup import Job

_LoadedBatch = tuple[tuple[torch.Tensor, torch.Tensor], LoadTiming]


@dataclass(frozen=True)
class LoopHooks:
    """Observers of the loop. They receive events and do not change the training."""

    meter: StepMeter
    recorder: Recorder
    stop: StopRequest
    elapsed_s: Callable[[], float]
    save: Callable[[TrainingProgress], None]
    inside: InsideView
    before_epoch: Callable[[int], None] = lambda epoch: None


def train(job: Job, watch: LoopHooks, start: TrainingProgress) -> None:
    """Run the stages of the run from `start` on.

    Writes a checkpoint and raises `Interrupted` between two steps if a stop is requested.
    """
    first = start.position.stage
    for number, stage in enumerate(job.stages[first:], first):
        resumed = start.position.step > 0 and number == first
        done = start.position.step if resumed else 0
        if stage.split == "train":
            watch.before_epoch(stage.epoch)
            timing = EpochTiming(stage.epoch, watch.elapsed_s(), time.time())
            tally = Tally()
            if resumed and start.timing and start.tally:
                timing, tally = start.timing, start.tally
            counter = AccuracyCounter(job.device, tally.hits, tally.samples)
            watch.recorder.begin(number, done, tally, counter)
            give_back()  # memory freed by a test and a checkpoint would add to the peak of a step
            opened_ns = other_clock_ns()  # a second clock, to check the meter
            finished = train_epoch(job, watch, timing, counter, done, stage.steps)
            timing.total_s += seconds(other_clock_ns() - opened_ns)
            tally.hits = counter.total()
            if finished < stage.steps:
                position = Position(number, finished)
                watch.save(TrainingProgress(position, timing, tally))
                watch.stop.check()
            watch.recorder.epoch("train", timing, job.process_group.total(tally))
            if number + 1 < len(job.stages) and job.stages[number + 1].split != "train":
                continue  # the checkpoint is written after the test
            position = Position(number + 1)
        else:
            watch.recorder.evaluating(stage.epoch)
            evaluated = evaluate_epoch(job, watch, stage.epoch)
            if evaluated is not None:
                timing, tally = evaluated
                watch.recorder.epoch(stage.split, timing, job.process_group.total(tally))
            watch.stop.agree()
            position = Position(number if evaluated is None else number + 1)
        watch.save(TrainingProgress(position))
        if position.stage < len(job.stages):  # after the last stage a request is too late
            watch.stop.check()


def train_epoch(
    job: Job, watch: LoopHooks, timing: EpochTiming, counter: AccuracyCounter, done: int, last: int
) -> int:
    """Train the steps after `done` up to `last`; return the last finished step."""
    spec, meter, process_group = job.spec, watch.meter, job.process_group
    memory_format, autocast = memory_format_of(spec), autocast_of(spec, job.device)
    job.train.order.epoch, job.train.order.skip = timing.epoch, done * spec.accumulate
    job.model.train()
    step = done
    switch_after = watch.inside.begin(timing.epoch, done)  # a few steps are profiled

    meter.open_epoch(timing)
    batches: Iterator[_LoadedBatch] = iter(job.train.loader)
    meter.loader_started()
    while step < last:
        loaded = None
        with watch.stop:  # a request ends the wait for a batch
            loaded = None if watch.stop.requested else next(batches, None)
        if loaded is None:
            break
        samples = left = samples_of_step(job, step + 1)
        own_samples = 0
        step_loss: torch.Tensor | None = None
        while left:  # several batches if gradients are accumulated
            (images, labels), load_timing = loaded or next(batches)
            loaded = None  # frees the original beside its copy on the device
            meter.lap(DATA)
            meter.loaded(load_timing)
            images = images.to(job.device, memory_format=memory_format, non_blocking=True)
            labels = labels.to(job.device, non_blocking=True)
            meter.lap(TRANSFER)
            of_all = min(left, spec.batch_size)
            own = process_group.share(of_all)  # 0 if the last batch is too small for all ranks
            left -= of_all
            own_samples += own
            with process_group.no_sync(job.network) if left else nullcontext():
                with autocast:
                    outputs = job.network(images)
                    loss = F.cross_entropy(outputs, labels)
                    if own < samples:  # this rank's share of the step's mean
                        loss = loss * (own / samples)
                counter.add(outputs[:own], labels[:own])
                meter.lap(FORWARD)
                (job.scaler.scale(loss) if job.scaler else loss).backward()
            meter.lap(BACKWARD)
            loss = loss.detach()
            step_loss = loss if step_loss is None else step_loss + loss
        if job.scaler:
            job.scaler.step(job.optimizer)
            job.scaler.update()
        else:
            job.optimizer.step()
        job.optimizer.zero_grad()
        if job.schedule:
            job.schedule.step()
        meter.lap(OPTIMIZER)
        assert step_loss is not None, "a step has at least one batch"
        if own_samples < samples:  # a rank records the mean of its own samples
            step_loss = step_loss * (samples / own_samples) if own_samples else None
        watch.stop.consult()
        step += 1
        meter.end_step(step, own_samples, step_loss)
        if step == switch_after:
            switch_after = watch.inside.switch(step)
    watch.inside.end(step)
    if step == last:
        next(batches, None)  # the loader ends its workers at the end of the epoch
    del batches
    meter.close_epoch()
    return step


@torch.no_grad()
def evaluate_epoch(job: Job, watch: LoopHooks, epoch: int) -> tuple[EpochTiming, Tally] | None:
    """Evaluate the model; return None if a stop was requested before the end.

    Reads its sums from the device once, at the end.
    """
    memory_format, autocast = memory_format_of(job.spec), autocast_of(job.spec, job.device)
    timing = EpochTiming(epoch, watch.elapsed_s(), time.time())
    counter = AccuracyCounter(job.device)
    loss_sum = torch.zeros((), device=job.device)
    assert job.test is not None, "an evaluation is planned only if there is a split for it"
    job.test.order.epoch = epoch  # changes no batch: reported if a worker dies
    job.model.eval()
    job.process_group.share_buffers(job.model)
    left = job.test.order.samples

    opened = now_ns()
    batches: Iterator[_LoadedBatch] = iter(job.test.loader)
    started = mark = now_ns()
    while True:
        loaded = None
        with watch.stop:
            loaded = None if watch.stop.requested else next(batches, None)
        if loaded is None:
            break
        (images, labels), _ = loaded
        timing.data_s += seconds(now_ns() - mark)
        images = images.to(job.device, memory_format=memory_format, non_blocking=True)
        labels = labels.to(job.device, non_blocking=True)
        own = job.process_group.share(min(left, job.spec.batch_size))
        left -= min(left, job.spec.batch_size)
        with autocast:
            outputs = job.model(images)[:own]
            loss_sum += F.cross_entropy(outputs, labels[:own], reduction="sum")
        counter.add(outputs, labels[:own])
        timing.samples += own
        mark = now_ns()
    exhausted = now_ns()
    if watch.stop.requested:
        return None
    tally = Tally(loss_sum.item(), timing.samples, counter.total())  # waits for the device
    closed = now_ns()
    timing.loader_start_s = seconds(started - opened)
    timing.loader_stop_s = seconds(exhausted - mark)
    timing.steps_s = seconds((mark - started) + (closed - exhausted))
    timing.total_s = seconds(closed - opened)
    return timing, tally


def samples_of_step(job: Job, step: int) -> int:
    """Return the number of samples of a step; the last step of an epoch may have fewer."""
    full = job.spec.batch_size * job.spec.accumulate
    return min(full, job.train.order.samples - (step - 1) * full)
