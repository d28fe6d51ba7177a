"""The training loop. Everything that happens to a weight happens on this page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

from stepscope.meter.clock import now_ns, other_clock_ns, seconds
from stepscope.meter.process_memory import give_back
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
from stepscope.train.accuracy import HitCounter
from stepscope.train.checkpoint import TrainingProgress
from stepscope.train.cold_epochs import BeforeEpoch
from stepscope.train.device import autocast_of, layout_of
from stepscope.train.epoch_plan import Position
from stepscope.train.profile_window import InsideView, Window
from stepscope.train.recorder import Recorder, Tally
from stepscope.train.stop_request import StopRequest
from stepscope.train.training_setup import Job

_LoadedBatch = tuple[tuple[torch.Tensor, torch.Tensor], LoadTiming]


@dataclass(frozen=True)
class LoopHooks:
    """Those who look on: they are told what happens and change nothing of it."""

    meter: StepMeter
    recorder: Recorder
    stop: StopRequest
    elapsed_s: Callable[[], float]
    save: Callable[[TrainingProgress], None]
    inside: InsideView[Window]
    before_epoch: BeforeEpoch = lambda epoch: None


def train(job: Job, watch: LoopHooks, start: TrainingProgress) -> None:
    """Go through the stages of the run from wherever it stands.

    Raises `Interrupted` between two steps when a stop was asked for, with a checkpoint written.
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
                timing, tally = EpochTiming(**start.timing), Tally(**start.tally)
            hits = HitCounter(job.device, tally.hits, tally.samples)
            watch.recorder.begin(number, done, tally, hits)
            give_back()  # the holes that a test and a checkpoint leave would come on top of a step
            opened_ns = other_clock_ns()  # a clock pair apart from the meter's, to check it by
            finished = train_epoch(job, watch, timing, hits, done, stage.steps)
            timing.total_s += seconds(other_clock_ns() - opened_ns)
            tally.hits = hits.total()
            if finished < stage.steps:
                position = Position(number, finished)
                watch.save(TrainingProgress(position, asdict(timing), asdict(tally)))
                watch.stop.check()
            watch.recorder.epoch("train", timing, job.team.total(tally))
            if number + 1 < len(job.stages) and job.stages[number + 1].split != "train":
                continue  # what is saved next is saved after the test
            position = Position(number + 1)
        else:
            watch.recorder.testing(stage.epoch)
            tested = test_epoch(job, watch, stage.epoch)
            if tested is not None:
                timing, tally = tested
                watch.recorder.epoch(stage.split, timing, job.team.total(tally))
            watch.stop.agree()
            position = Position(number if tested is None else number + 1)
        watch.save(TrainingProgress(position))
        if position.stage < len(job.stages):  # a request that comes with the end is too late
            watch.stop.check()


def train_epoch(
    job: Job, watch: LoopHooks, timing: EpochTiming, hits: HitCounter, done: int, last: int
) -> int:
    """Train from after step `done` to step `last`; return the last step that was finished."""
    spec, meter, team = job.spec, watch.meter, job.team
    layout, autocast = layout_of(spec), autocast_of(spec, job.device)
    job.train.order.epoch, job.train.order.skip = timing.epoch, done * spec.accumulate
    job.model.train()
    step = done
    switch_after = watch.inside.begin(timing.epoch, done)  # a few steps have hooks on every layer

    meter.open_epoch(timing)
    batches: Iterator[_LoadedBatch] = iter(job.train.loader)
    meter.loader_started()
    while step < last and (loaded := watch.stop.next_batch(batches)) is not None:
        samples = left = samples_of_step(job, step + 1)
        own_samples = 0
        step_loss: torch.Tensor | None = None
        while left:  # more than once where gradients of several batches add up
            (images, labels), load_timing = loaded or next(batches)
            loaded = None  # the batch as it came would fill the caches beside its copy
            meter.lap(DATA)
            meter.loaded(load_timing)
            images = images.to(job.device, memory_format=layout, non_blocking=True)
            labels = labels.to(job.device, non_blocking=True)
            meter.lap(TRANSFER)
            of_all = min(left, spec.batch_size)
            own = team.share(of_all)  # 0 where a last batch is too small for all processes
            left -= of_all
            own_samples += own
            with team.without_exchange(job.network) if left else nullcontext():
                with autocast:
                    outputs = job.network(images)
                    loss = F.cross_entropy(outputs, labels)
                    if own < samples:  # its share of the step's mean
                        loss = loss * (own / samples)
                hits.add(outputs[:own], labels[:own])
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
        if own_samples < samples:  # the mean of its own samples is what a process writes down
            step_loss = step_loss * (samples / own_samples) if own_samples else None
        watch.stop.consult()
        step += 1
        meter.end_step(step, own_samples, step_loss)
        if step == switch_after:
            switch_after = watch.inside.switch(step)
    watch.inside.end(step)
    if step == last:
        next(batches, None)  # a loader ends its workers when it finds that nothing is left
    del batches
    meter.close_epoch()
    return step


@torch.no_grad()
def test_epoch(job: Job, watch: LoopHooks, epoch: int) -> tuple[EpochTiming, Tally] | None:
    """Go over the samples to test on; None when a stop was asked for in the middle.

    Reads its sums from the device once, at the end.
    """
    layout, autocast = layout_of(job.spec), autocast_of(job.spec, job.device)
    timing = EpochTiming(epoch, watch.elapsed_s(), time.time())
    hits = HitCounter(job.device)
    loss_sum = torch.zeros((), device=job.device)
    assert job.test is not None, "a stage that tests is planned only where there is a test split"
    job.test.order.epoch = epoch  # changes no batch: it is told where workers are lost
    job.model.eval()
    job.team.share_buffers(job.model)
    left = job.test.order.samples

    opened = now_ns()
    batches: Iterator[_LoadedBatch] = iter(job.test.loader)
    started = mark = now_ns()
    while (loaded := watch.stop.next_batch(batches)) is not None:
        (images, labels), _ = loaded
        timing.data_s += seconds(now_ns() - mark)
        images = images.to(job.device, memory_format=layout, non_blocking=True)
        labels = labels.to(job.device, non_blocking=True)
        own = job.team.share(min(left, job.spec.batch_size))
        left -= min(left, job.spec.batch_size)
        with autocast:
            outputs = job.model(images)[:own]
            loss_sum += F.cross_entropy(outputs, labels[:own], reduction="sum")
        hits.add(outputs, labels[:own])
        timing.samples += own
        mark = now_ns()
    exhausted = now_ns()
    if watch.stop.requested:
        return None
    tally = Tally(loss_sum.item(), timing.samples, hits.total())  # waits for the device
    closed = now_ns()
    timing.loader_start_s = seconds(started - opened)
    timing.loader_stop_s = seconds(exhausted - mark)
    timing.steps_s = seconds((mark - started) + (closed - exhausted))
    timing.total_s = seconds(closed - opened)
    return timing, tally


def samples_of_step(job: Job, step: int) -> int:
    """Count the samples that a step takes: the last one of an epoch takes what is left."""
    full = job.spec.batch_size * job.spec.accumulate
    return min(full, job.train.order.samples - (step - 1) * full)
