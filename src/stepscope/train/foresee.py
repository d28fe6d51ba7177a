"""What a training will take, found out by the training process itself before it begins.

It tries a step of two samples and one of three, which every training can afford. They load all
that torch loads only when it is needed, so that the process now has the size of its runtime; and
they show every tensor of a step (`estimate.step_ledger`), whose size at the real batch follows. Two
more steps, never larger than the real ones, show what the allocator and the convolution library
take beyond the tensors. Nothing of it stays: weights, statistics and random numbers are as before.

On a device with an allocator of its own the same steps are done there. The tensors are counted as
on a CPU; what was reserved for the last two steps beyond that count is the calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from stepscope.data.catalogue import DataSet
from stepscope.estimate.device_blocks import reserved_for
from stepscope.estimate.slack import AllocatorTrial
from stepscope.estimate.step_ledger import (
    NO_OPTIMIZER,
    OptimizerMemory,
    StepLog,
    StepMemory,
    add_up,
    at_batch,
    watch_step,
    weigh_optimizer,
)
from stepscope.measure.device_memory import Context, DeviceMemory
from stepscope.measure.own_memory import growth_during, resident_bytes
from stepscope.spec import RunSpec
from stepscope.train.optimizers import make_optimizer
from stepscope.train.small_step import SmallStep, as_it_was

TRIED_BATCHES = (2, 3)

# The trial of the allocator: large enough to show holes, small enough to take a second.
_TRIAL_KEPT_BYTES = 64 * 2**20
_TRIAL_MOST_SAMPLES = 16
_TRIAL_STEPS = 2


@dataclass(frozen=True)
class DeviceForesight:
    """What was found out of a device's memory, after the small steps.

    `excess_bytes` is what was reserved beyond what the allocator's rules say for those steps.
    """

    limit_bytes: int
    unified: bool
    context: Context
    excess_bytes: int


@dataclass(frozen=True)
class Foresight:
    """What was found out: of a step at any batch, of the optimiser, of the process, of the device.

    `allocator` is None where this system cannot tell how much a process took; `device` where the
    tensors are in the process's own memory.
    """

    logs: tuple[StepLog, StepLog]
    optimizer: OptimizerMemory
    runtime_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    allocator: AllocatorTrial | None = None
    device: DeviceForesight | None = None

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

    def reserved_bytes(self, batch_size: int) -> int:
        """Return what a device's allocator reserves for the tensors of steps at a batch."""
        return reserved_for(at_batch(*self.logs, batch_size), self.optimizer)


def look_ahead(
    spec: RunSpec,
    model: nn.Module,
    dataset: DataSet,
    device: torch.device,
    memory: DeviceMemory | None = None,
) -> Foresight:
    """Try some small steps of a training whose network is built and on its device.

    `memory` is the device's; on a CPU there is none.
    """
    trial = SmallStep(spec, model, dataset, device)
    optimizer = weigh_optimizer(
        lambda parameters: make_optimizer(spec, parameters), device, all_at_once=memory is not None
    )
    weights = [*model.parameters(), *model.buffers()]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with as_it_was(model, device):
        logs = [_watch(trial, samples) for samples in TRIED_BATCHES]
        parameters_bytes = _size_bytes(weights)
        on_host_bytes = parameters_bytes if memory is None else 0
        seen = Foresight(
            logs=(logs[0], logs[1]),
            optimizer=optimizer,
            runtime_bytes=resident_bytes() - on_host_bytes,
            parameters_bytes=parameters_bytes,
            gradients_bytes=_size_bytes(trained),
        )
        samples = _trial_samples(spec, seen)
        if memory is None:
            return replace(seen, allocator=_try_allocator(trial, seen, samples))
        return replace(seen, device=_try_device(trial, seen, samples, memory))


def _watch(trial: SmallStep, samples: int) -> StepLog:
    images, labels = trial.batch(samples)
    before = [*trial.model.parameters(), *trial.model.buffers()]
    log = watch_step(
        lambda mark: trial.take_with(images, labels, mark), before, (images, labels), samples
    )
    trial.model.zero_grad()
    return log


def _trial_samples(spec: RunSpec, seen: Foresight) -> int:
    kept = [add_up(log, NO_OPTIMIZER).kept_bytes for log in seen.logs]
    a_sample = max(1, (kept[1] - kept[0]) // (TRIED_BATCHES[1] - TRIED_BATCHES[0]))
    most = min(spec.batch_size, _TRIAL_MOST_SAMPLES)
    return max(TRIED_BATCHES[0], min(most, _TRIAL_KEPT_BYTES // a_sample))


def _some_steps(trial: SmallStep, samples: int) -> None:
    for _ in range(_TRIAL_STEPS):
        trial.take(samples)
        trial.model.zero_grad()


def _try_allocator(trial: SmallStep, seen: Foresight, samples: int) -> AllocatorTrial | None:
    """Take a few steps, and see what the process takes beyond their tensors."""
    step = add_up(at_batch(*seen.logs, samples), NO_OPTIMIZER)
    grew_bytes = growth_during(lambda: _some_steps(trial, samples))
    if grew_bytes is None:
        return None
    return AllocatorTrial(step.kept_bytes, grew_bytes - (step.peak_bytes - seen.parameters_bytes))


def _try_device(
    trial: SmallStep, seen: Foresight, samples: int, memory: DeviceMemory
) -> DeviceForesight:
    """Take a few steps, and see what the device's allocator reserves beyond what is counted."""
    counted_bytes = reserved_for(at_batch(*seen.logs, samples), NO_OPTIMIZER)
    memory.begin_anew()
    _some_steps(trial, samples)
    excess_bytes = memory.peak_reserved_bytes() - counted_bytes
    context = memory.context()
    memory.begin_anew()  # the training begins with nothing kept, and with a peak of its own
    return DeviceForesight(memory.limit_bytes(), memory.unified, context, excess_bytes)


def _size_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Add up blocks of memory, each once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())
