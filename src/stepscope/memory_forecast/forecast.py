"""Forecast the memory bill of a training from a few probe steps in the training process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from stepscope.data.dataset import DataSet
from stepscope.data.object_store.store_url import is_store_url
from stepscope.hardware.process_memory import growth_during, trimmed_resident_bytes
from stepscope.memory_forecast.cuda_allocator import reserved_for
from stepscope.memory_forecast.memory_bill import Bill, How, Item, Limit, Pool, memory_limits
from stepscope.meter.device_memory import Context, DeviceMemory
from stepscope.models.step_tensors import (
    NO_OPTIMIZER,
    OptimizerMemory,
    StepLog,
    StepMemory,
    add_up,
    at_batch,
    measure_optimizer,
    record_step,
)
from stepscope.settings import RunSpec
from stepscope.train.optimizers import make_optimizer
from stepscope.train.probe_step import ProbeStep, training_state_restored
from stepscope.units import format_bytes

TRIED_BATCHES = (2, 3)

# The allocator trial: large enough to show fragmentation, small enough to take a second.
_TRIAL_KEPT_BYTES = 64 * 2**20
_TRIAL_MOST_SAMPLES = 16
_TRIAL_STEPS = 2


@dataclass(frozen=True)
class AllocatorTrial:
    """The memory of a process beyond its tensors, and the activations of that trial."""

    kept_bytes: int
    excess_bytes: int


@dataclass(frozen=True)
class DeviceProbe:
    """The memory of a device; `excess_bytes` was reserved beyond the simulated allocator."""

    limit_bytes: int
    unified: bool
    context: Context
    excess_bytes: int


@dataclass(frozen=True)
class StepProbe:
    """The results of the probe steps; `device` is None if tensors are in host memory."""

    logs: tuple[StepLog, StepLog]
    optimizer: OptimizerMemory
    runtime_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    allocator: AllocatorTrial | None = None
    device: DeviceProbe | None = None

    @property
    def state_bytes(self) -> int:
        """The size of the optimiser state."""
        return round(self.gradients_bytes * self.optimizer.state)

    def step(self, batch_size: int) -> StepMemory:
        """Return the memory of a step's tensors at a batch size."""
        return add_up(at_batch(*self.logs, batch_size), self.optimizer)


def probe_steps(
    spec: RunSpec, model: nn.Module, dataset: DataSet, memory: DeviceMemory | None = None
) -> StepProbe:
    """Run some small steps of a network on its device; `memory` is None on a CPU."""
    device = torch.device(spec.device)
    trial = ProbeStep(spec, model, dataset, device)
    optimizer = measure_optimizer(
        lambda parameters: make_optimizer(spec, parameters), device, all_at_once=memory is not None
    )
    weights = [*model.parameters(), *model.buffers()]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with training_state_restored(model, device):
        logs = [_watch(trial, samples) for samples in TRIED_BATCHES]
        parameters_bytes = _size_bytes(weights)
        on_host_bytes = parameters_bytes if memory is None else 0
        seen = StepProbe(
            logs=(logs[0], logs[1]),
            optimizer=optimizer,
            runtime_bytes=trimmed_resident_bytes() - on_host_bytes,
            parameters_bytes=parameters_bytes,
            gradients_bytes=_size_bytes(trained),
        )
        kept = [add_up(log, NO_OPTIMIZER).kept_bytes for log in logs]
        a_sample = max(1, (kept[1] - kept[0]) // (TRIED_BATCHES[1] - TRIED_BATCHES[0]))
        most = min(spec.batch_size, _TRIAL_MOST_SAMPLES)
        samples = max(TRIED_BATCHES[0], min(most, _TRIAL_KEPT_BYTES // a_sample))
        if memory is None:
            return replace(seen, allocator=_try_allocator(trial, seen, samples))
        return replace(seen, device=_try_device(trial, seen, samples, memory))


def _watch(trial: ProbeStep, samples: int) -> StepLog:
    images, labels = trial.batch(samples)
    before = [*trial.model.parameters(), *trial.model.buffers()]
    log = record_step(
        lambda mark: trial.take_with(images, labels, mark), before, (images, labels), samples
    )
    trial.model.zero_grad()
    return log


def _some_steps(trial: ProbeStep, samples: int) -> None:
    for _ in range(_TRIAL_STEPS):
        trial.take(samples)
        trial.model.zero_grad()


def _try_allocator(trial: ProbeStep, seen: StepProbe, samples: int) -> AllocatorTrial | None:
    """Measure the growth of the process beyond the tensors of a few steps."""
    step = add_up(at_batch(*seen.logs, samples), NO_OPTIMIZER)
    grew_bytes = growth_during(lambda: _some_steps(trial, samples))
    if grew_bytes is None:
        return None
    return AllocatorTrial(step.kept_bytes, grew_bytes - (step.peak_bytes - seen.parameters_bytes))


def _try_device(
    trial: ProbeStep, seen: StepProbe, samples: int, memory: DeviceMemory
) -> DeviceProbe:
    """Measure the reserved memory of the device beyond the simulation for a few steps."""
    counted_bytes = reserved_for(at_batch(*seen.logs, samples), NO_OPTIMIZER)
    memory.reset()
    _some_steps(trial, samples)
    excess_bytes = memory.peak_reserved_bytes() - counted_bytes
    context = memory.context()
    memory.reset()  # the training starts with an empty cache and a new peak
    return DeviceProbe(memory.limit_bytes(), memory.unified, context, excess_bytes)


def _size_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the total size of storages, each counted once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


_LABEL_BYTES = 8  # an int64

# Items in host memory on every device; the others are where the tensors are.
_OF_THE_PROCESS = ("runtime", "prefetch", "workers", "dataset")

_HOLES_MIB = 7.0  # for one MiB kept beyond the trial; twice as much for four

# Used if the allocator could not be tried: measured for ResNet-18, batch 14, on glibc.
_ASSUMED = AllocatorTrial(kept_bytes=62 * 2**20, excess_bytes=60 * 2**20)


@dataclass(frozen=True)
class ForecastInputs:
    """The inputs of a forecast besides the spec; `processes` share the host's memory."""

    probe: StepProbe
    dataset: DataSet
    worker_bytes: int = 0
    processes: int = 1


def forecast(spec: RunSpec, inputs: ForecastInputs) -> Bill:
    """Return the memory bill of a training; raise `UnlikeSteps` if steps cannot be compared."""
    seen, step = inputs.probe, inputs.probe.step(spec.batch_size)
    batch_bytes = spec.batch_size * (inputs.dataset.input_bytes + _LABEL_BYTES)
    peak_bytes = step.peak_bytes
    if spec.accumulate > 1:  # gradients stay from one batch of the step to the next
        peak_bytes += seen.gradients_bytes - step.at_peak["gradients"]
    slack, how_slack = _slack(seen, step)
    # Gradients are allocated while activations are freed. If the sum of the items exceeds the peak,
    # the allocator has reused memory.
    together = seen.parameters_bytes + seen.gradients_bytes + seen.state_bytes + batch_bytes
    together += step.kept_bytes
    workspace = max(0, peak_bytes - together)
    not_at_once = max(0, together - peak_bytes)
    reused = min(slack, not_at_once)
    activations = step.kept_bytes - (not_at_once - reused)
    about_activations = "kept for the backward pass"
    if activations < step.kept_bytes:
        about_activations = f"of {format_bytes(step.kept_bytes)}, partly freed at the peak"
    optimizer = "sgd with momentum" if spec.optimizer == "sgd" and spec.momentum else spec.optimizer
    samples = "samples as float32"
    if inputs.dataset.tokens is not None:
        samples = f"texts of up to {inputs.dataset.shape[0]:,} tokens"
    state = seen.optimizer.state
    values = "1 value" if state == 1 else f"{state:g} values"
    items = {
        "runtime": Item(seen.runtime_bytes, "measured", "interpreter and libraries"),
        "device_context": Item(0, "counted", "none: the device is the CPU"),
        "parameters": Item(seen.parameters_bytes, "counted", "weights and running statistics"),
        "gradients": Item(seen.gradients_bytes, "counted", "1 value per trained weight"),
        "optimizer_state": Item(seen.state_bytes, "counted", f"{values} per weight ({optimizer})"),
        "activations": Item(activations, "counted", about_activations),
        "batch": Item(batch_bytes, "counted", f"{spec.batch_size:,} {samples}"),
        "prefetch": _prefetch(spec, batch_bytes, copied=seen.device is not None),
        "workers": Item(
            spec.workers * inputs.worker_bytes,
            "calibrated" if spec.workers else "counted",
            f"{spec.workers} x {format_bytes(inputs.worker_bytes)} private memory",
        ),
        "dataset": _dataset(spec, inputs.dataset),
        "workspace": Item(workspace, "counted", "gradients of activations"),
        "slack": Item(slack - reused, how_slack, "fragmentation and library workspace"),
    }
    return _in_pools(items, spec, inputs)


def _in_pools(items: dict[str, Item], spec: RunSpec, inputs: ForecastInputs) -> Bill:
    """Place the items in the pools of the device, and find the limit of each pool."""
    device = inputs.probe.device
    limits = memory_limits(spec.memory_limit, spec.workers)
    if device is not None:
        context, unified = device.context, device.unified
        limit = Limit(f"memory of {spec.device}", device.limit_bytes)
        limits = memory_limits(spec.memory_limit, spec.workers, limit, unified=unified)
        of_process: Pool = "unified" if unified else "host"
        of_tensors: Pool = "unified" if unified else "device"
        items["device_context"] = Item(context.bytes, context.how, context.note)
        items = {
            name: replace(item, pool=of_process if name in _OF_THE_PROCESS else of_tensors)
            for name, item in items.items()
        }
    if inputs.processes > 1:
        shared_by = f"shared by {inputs.processes} processes"
        limits |= {
            pool: Limit(f"{limit.of}, {shared_by}", limit.bytes // inputs.processes)
            for pool, limit in limits.items()
            if pool != "device"
        }
    return Bill(items, limits)


def _slack(seen: StepProbe, step: StepMemory) -> tuple[int, How]:
    if seen.device is not None:
        # The scratch memory of libraries is assumed to be the same for a larger batch.
        reserved_bytes = reserved_for(at_batch(*seen.logs, step.batch_size), seen.optimizer)
        excess_bytes = seen.device.excess_bytes
        return max(0, reserved_bytes + excess_bytes - step.peak_bytes), "calibrated"
    how: How = "assumed" if seen.allocator is None else "calibrated"
    return slack_bytes(seen.allocator or _ASSUMED, step.kept_bytes), how


def slack_bytes(trial: AllocatorTrial, kept_bytes: int) -> int:
    """Return the overhead of a step that keeps `kept_bytes` of activations.

    The square root fits the CNNs of the zoo at batch 8 to 128 (glibc, bench/memory_forecast.py):
    the more a step keeps, the more of it is in separately mapped blocks.
    """
    tried = max(0, trial.excess_bytes)
    if kept_bytes <= trial.kept_bytes:
        return round(tried * kept_bytes / max(1, trial.kept_bytes))
    further_mib = (kept_bytes - trial.kept_bytes) / 2**20
    return tried + round(_HOLES_MIB * math.sqrt(further_mib) * 2**20)


def _prefetch(spec: RunSpec, batch_bytes: int, *, copied: bool) -> Item:
    """Return the prefetched batches in host memory, with the one being `copied` to the device."""
    batches = spec.workers * spec.prefetch + copied
    note = f"{batches} batches in shared memory"
    if not spec.workers:
        note = "one batch being copied to the device" if copied else "no workers"
    return Item(batches * batch_bytes, "counted", note)


def _dataset(spec: RunSpec, dataset: DataSet) -> Item:
    if spec.source == "synthetic":
        return Item(0, "counted", "one batch, reused for every step")
    downloaded = is_store_url(spec.source) and spec.access == "download"
    if spec.source != "memory" and not downloaded:
        return Item(0, "counted", "read sample by sample")
    splits = spec.splits_read
    samples = sum(dataset.count(split, spec.samples) for split in splits)
    if dataset.held_bytes is not None:
        held = sum(dataset.held_bytes(split, spec.samples) for split in splits)
        held_as = "compressed files" if dataset.tokens is None else "texts"
        return Item(held, "counted", f"{samples:,} {held_as}")
    held = samples * (math.prod(dataset.shape) + _LABEL_BYTES)
    return Item(held, "counted", f"{samples:,} samples as bytes")
