"""Measure the memory of a few training steps: `python -m stepscope.processes.memory_trial`.

The steps are those of `train/loop.py`: the same calls in the same order, and variables that live
until the next step. `MemoryTrialOptions` turns on ways to use less memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from stepscope.errors import RequestError
from stepscope.hardware.process_memory import give_back
from stepscope.meter.clock import now_ns, seconds
from stepscope.meter.phase_memory import PeakWithWorkers, PhaseMemory
from stepscope.processes.answer import answer_once
from stepscope.records.types import (
    MemoryTrialFigures,
    MemoryTrialOptions,
    MemoryTrialRequest,
    PhaseReading,
)
from stepscope.settings.load_settings import validate
from stepscope.train.accuracy import AccuracyCounter
from stepscope.train.device import autocast_of, memory_format_of, resolve
from stepscope.train.loop import samples_of_step
from stepscope.train.optimizers import make_optimizer
from stepscope.train.training_setup import Job, build, build_model


@dataclass
class _StepWatch:
    """The measurements of a trial: memory by phase, or the peak and the times of steps."""

    by_phase: bool
    phases: list[PhaseReading] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak: PeakWithWorkers = field(default_factory=PeakWithWorkers)
    epoch: int = 0
    step: int = 0
    _memory: PhaseMemory = field(default_factory=PhaseMemory)

    def lap(self, phase: str) -> None:
        if self.by_phase:
            self.phases.append(self._memory.lap(phase, self.epoch, self.step))


def try_steps(request: MemoryTrialRequest) -> MemoryTrialFigures:
    """Build a training, run its first steps, and return the measurements."""
    spec, options = resolve(validate(request["spec"])), request["options"]
    watch = _StepWatch(options.get("phases", False))
    watch.lap("libraries")
    model = build_model(spec)
    watch.lap("network")
    job = build(spec, model, Path(spec.data_dir).resolve())
    watch.lap("data set")
    try:
        if options.get("step_in_backward"):
            _step_in_backward(job)
        if not watch.by_phase:
            watch.peak.begin()
        counter = AccuracyCounter(job.device)
        for epoch in range(1, options.get("epochs", 1) + 1):
            watch.epoch = epoch
            _epoch(job, options, watch, counter)
    finally:
        job.close()
    if watch.by_phase:
        give_back()
        watch.lap("malloc_trim")
    return {
        "phases": watch.phases,
        "peak_bytes": None if watch.by_phase else watch.peak.peak_bytes(),
        "workers_bytes": watch.peak.others_bytes,
        "step_s": watch.step_s,
        "losses": watch.losses,
    }


def _epoch(
    job: Job, options: MemoryTrialOptions, watch: _StepWatch, counter: AccuracyCounter
) -> None:
    """Train an epoch as `loop.train_epoch` does."""
    memory_format, autocast = memory_format_of(job.spec), autocast_of(job.spec, job.device)
    job.train.order.epoch, job.train.order.skip = watch.epoch, 0
    job.model.train()
    of_epoch = -(-len(job.train.order) // job.spec.accumulate)
    last = min(options.get("steps", 8), of_epoch)
    give_back()
    batches: Iterator[Any] = iter(job.train.loader)
    watch.step = 0
    watch.lap("loader start")
    for step in range(1, last + 1):
        watch.step, began_ns = step, now_ns()
        samples = left = samples_of_step(job, step)
        step_loss = torch.zeros((), device=job.device)
        while left:
            (images, labels), _ = next(batches)
            watch.lap("data")
            images = images.to(job.device, memory_format=memory_format, non_blocking=True)
            labels = labels.to(job.device, non_blocking=True)
            watch.lap("transfer")
            with autocast:
                outputs = job.model(images)
                loss = F.cross_entropy(outputs, labels)
                if len(labels) < samples:
                    loss = loss * (len(labels) / samples)
            counter.add(outputs, labels)
            left -= len(labels)
            watch.lap("forward")
            if options.get("drop_early"):
                outputs = images = labels = None
            (job.scaler.scale(loss) if job.scaler else loss).backward()
            watch.lap("backward")
            loss = loss.detach()
            step_loss = step_loss + loss
        if not options.get("step_in_backward"):
            if job.scaler:
                job.scaler.step(job.optimizer)
                job.scaler.update()
            else:
                job.optimizer.step()
            watch.lap("optimizer step")
            job.optimizer.zero_grad()
            watch.lap("zero_grad")
        if job.schedule:
            job.schedule.step()
        if options.get("trim"):
            give_back()
        watch.step_s.append(seconds(now_ns() - began_ns))
        watch.losses.append(float(step_loss))
        if job.spec.workers and not watch.by_phase:
            watch.peak.measure_workers()
    watch.step = 0
    del outputs, loss, images, labels, step_loss
    watch.lap("drop of outputs, loss and batch")
    if last == of_epoch:
        next(batches, None)  # the loader ends its workers at the end of the epoch
    del batches
    counter.total()
    watch.lap("end of the epoch")


def _step_in_backward(job: Job) -> None:
    """Update each parameter and free its gradient during the backward pass."""
    spec = job.spec
    if spec.accumulate > 1 or job.scaler is not None or job.schedule is not None:
        raise RequestError(
            "a step in the backward pass needs accumulate 1, no fp16 and a constant learning rate"
        )
    for parameter in job.model.parameters():
        if parameter.requires_grad:
            own = make_optimizer(spec, [parameter])

            def step(stepped: torch.Tensor, own: torch.optim.Optimizer = own) -> None:
                own.step()
                own.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)


if __name__ == "__main__":
    answer_once(try_steps)
