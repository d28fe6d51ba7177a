"""What a training will take, found out by the training process itself before it begins.

It tries a step of two samples and one of three, which every training can afford. They load all
that torch loads only when it is needed, so that the process now has the size of its runtime; and
they show every tensor of a step (`estimate.step_ledger`), whose size at the real batch follows. Two
more steps, never larger than the real ones, show what the allocator and the convolution library
take beyond the tensors. Nothing of it stays: weights, statistics and random numbers are as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from stepscope.data.catalogue import DataSet
from stepscope.estimate.eager import eagerly
from stepscope.estimate.slack import AllocatorTrial
from stepscope.estimate.step_ledger import (
    BACKWARD,
    FORWARD,
    NO_OPTIMIZER,
    Mark,
    OptimizerMemory,
    StepLog,
    StepMemory,
    add_up,
    at_batch,
    watch_step,
    weigh_optimizer,
)
from stepscope.measure.own_memory import growth_during, resident_bytes
from stepscope.spec import RunSpec
from stepscope.train.device import autocast_of, layout_of
from stepscope.train.optimizers import make_optimizer

TRIED_BATCHES = (2, 3)

# The trial of the allocator: large enough to show holes, small enough to take a second.
_TRIAL_KEPT_BYTES = 64 * 2**20
_TRIAL_MOST_SAMPLES = 16
_TRIAL_STEPS = 2


@dataclass(frozen=True)
class Foresight:
    """What was found out: of a step at any batch, of the optimiser, of the process.

    `allocator` is None where this system cannot tell how much a process took.
    """

    logs: tuple[StepLog, StepLog]
    optimizer: OptimizerMemory
    runtime_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    allocator: AllocatorTrial | None = None

    @property
    def state_bytes(self) -> int:
        """What the optimiser keeps."""
        return round(self.gradients_bytes * self.optimizer.state)

    def step(self, batch_size: int) -> StepMemory:
        """Return what the tensors of a step take at a batch.

        Raises:
            UnlikeSteps: the network did different things with two samples and with three.
        """
        return add_up(at_batch(*self.logs, batch_size), self.optimizer)


@dataclass(frozen=True)
class _Trial:
    spec: RunSpec
    model: nn.Module
    dataset: DataSet
    device: torch.device

    def step(self, samples: int, mark: Mark) -> None:
        """Do forward and backward of a step, with a batch that stays the caller's."""
        images, labels = self.batch(samples)
        self.step_with(images, labels, mark)

    def batch(self, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = self.dataset.blank(samples).to(self.device)
        images = images.contiguous(memory_format=layout_of(self.spec))
        return images, torch.arange(samples, device=self.device) % self.dataset.classes

    def step_with(self, images: torch.Tensor, labels: torch.Tensor, mark: Mark) -> None:
        with autocast_of(self.spec, self.device):
            outputs = self.model(images)
            loss = F.cross_entropy(outputs, labels)
        mark(FORWARD)
        loss.backward()
        mark(BACKWARD)


def look_ahead(
    spec: RunSpec, model: nn.Module, dataset: DataSet, device: torch.device
) -> Foresight:
    """Try some small steps of a training whose network is built and on its device."""
    trial = _Trial(spec, model, dataset, device)
    optimizer = weigh_optimizer(lambda parameters: make_optimizer(spec, parameters))
    weights = [*model.parameters(), *model.buffers()]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with _as_it_was(model, device):
        logs = [_watch(trial, samples) for samples in TRIED_BATCHES]
        parameters_bytes = _size_bytes(weights)
        on_host_bytes = parameters_bytes if device.type == "cpu" else 0
        seen = Foresight(
            logs=(logs[0], logs[1]),
            optimizer=optimizer,
            runtime_bytes=resident_bytes() - on_host_bytes,
            parameters_bytes=parameters_bytes,
            gradients_bytes=_size_bytes(trained),
        )
        return replace(seen, allocator=_try_allocator(trial, seen))


def _watch(trial: _Trial, samples: int) -> StepLog:
    images, labels = trial.batch(samples)
    before = [*trial.model.parameters(), *trial.model.buffers()]
    log = watch_step(
        lambda mark: trial.step_with(images, labels, mark), before, (images, labels), samples
    )
    trial.model.zero_grad()
    return log


def _try_allocator(trial: _Trial, seen: Foresight) -> AllocatorTrial | None:
    """Take a few steps, and see what the process takes beyond their tensors."""
    if trial.device.type != "cpu":
        return None
    kept = [add_up(log, NO_OPTIMIZER).kept_bytes for log in seen.logs]
    a_sample = max(1, (kept[1] - kept[0]) // (TRIED_BATCHES[1] - TRIED_BATCHES[0]))
    most = min(trial.spec.batch_size, _TRIAL_MOST_SAMPLES)
    samples = max(TRIED_BATCHES[0], min(most, _TRIAL_KEPT_BYTES // a_sample))
    step = add_up(at_batch(*seen.logs, samples), NO_OPTIMIZER)

    def some_steps() -> None:
        for _ in range(_TRIAL_STEPS):
            trial.step(samples, lambda phase: None)
            trial.model.zero_grad()

    grew_bytes = growth_during(some_steps)
    if grew_bytes is None:
        return None
    return AllocatorTrial(step.kept_bytes, grew_bytes - (step.peak_bytes - seen.parameters_bytes))


@contextlib.contextmanager
def _as_it_was(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put back the running statistics and the random numbers that a step changes."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    training = model.training
    model.train()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), eagerly():
            yield
    finally:
        model.train(training)
        model.zero_grad()
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _size_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Add up blocks of memory, each once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())
