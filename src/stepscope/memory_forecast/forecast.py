"""The memory bill of a training, forecast before it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from stepscope.data.dataset_registry import DataSet
from stepscope.data.object_store.store_url import is_store_url
from stepscope.memory_forecast.cuda_allocator import reserved_for
from stepscope.memory_forecast.malloc_overhead import (
    AllocatorTrial,
    device_slack_bytes,
    slack_bytes,
)
from stepscope.memory_forecast.memory_bill import Bill, How, Item, Limit, Pool, memory_limits
from stepscope.meter.device_memory import Context, DeviceMemory
from stepscope.meter.process_memory import growth_during, resident_bytes
from stepscope.models.step_tensors import (
    NO_OPTIMIZER,
    OptimizerMemory,
    StepLog,
    StepMemory,
    add_up,
    at_batch,
    watch_step,
    weigh_optimizer,
)
from stepscope.settings import RunSpec
from stepscope.train.optimizers import make_optimizer
from stepscope.train.probe_step import ProbeStep, training_state_restored
from stepscope.units import format_bytes

# --- What a training will take, found out by the training process itself before it begins


TRIED_BATCHES = (2, 3)

# The trial of the allocator: large enough to show holes, small enough to take a second.
_TRIAL_KEPT_BYTES = 64 * 2**20
_TRIAL_MOST_SAMPLES = 16
_TRIAL_STEPS = 2


@dataclass(frozen=True)
class DeviceProbe:
    """What was found out of a device's memory, after the small steps.

    `excess_bytes` is what was reserved beyond what the allocator's rules say for those steps.
    """

    limit_bytes: int
    unified: bool
    context: Context
    excess_bytes: int


@dataclass(frozen=True)
class StepProbe:
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
    device: DeviceProbe | None = None

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


def probe_steps(
    spec: RunSpec,
    model: nn.Module,
    dataset: DataSet,
    device: torch.device,
    memory: DeviceMemory | None = None,
) -> StepProbe:
    """Try some small steps of a training whose network is built and on its device.

    `memory` is the device's; on a CPU there is none.
    """
    trial = ProbeStep(spec, model, dataset, device)
    optimizer = weigh_optimizer(
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
            runtime_bytes=resident_bytes() - on_host_bytes,
            parameters_bytes=parameters_bytes,
            gradients_bytes=_size_bytes(trained),
        )
        samples = _trial_samples(spec, seen)
        if memory is None:
            return replace(seen, allocator=_try_allocator(trial, seen, samples))
        return replace(seen, device=_try_device(trial, seen, samples, memory))


def _watch(trial: ProbeStep, samples: int) -> StepLog:
    images, labels = trial.batch(samples)
    before = [*trial.model.parameters(), *trial.model.buffers()]
    log = watch_step(
        lambda mark: trial.take_with(images, labels, mark), before, (images, labels), samples
    )
    trial.model.zero_grad()
    return log


def _trial_samples(spec: RunSpec, seen: StepProbe) -> int:
    kept = [add_up(log, NO_OPTIMIZER).kept_bytes for log in seen.logs]
    a_sample = max(1, (kept[1] - kept[0]) // (TRIED_BATCHES[1] - TRIED_BATCHES[0]))
    most = min(spec.batch_size, _TRIAL_MOST_SAMPLES)
    return max(TRIED_BATCHES[0], min(most, _TRIAL_KEPT_BYTES // a_sample))


def _some_steps(trial: ProbeStep, samples: int) -> None:
    for _ in range(_TRIAL_STEPS):
        trial.take(samples)
        trial.model.zero_grad()


def _try_allocator(trial: ProbeStep, seen: StepProbe, samples: int) -> AllocatorTrial | None:
    """Take a few steps, and see what the process takes beyond their tensors."""
    step = add_up(at_batch(*seen.logs, samples), NO_OPTIMIZER)
    grew_bytes = growth_during(lambda: _some_steps(trial, samples))
    if grew_bytes is None:
        return None
    return AllocatorTrial(step.kept_bytes, grew_bytes - (step.peak_bytes - seen.parameters_bytes))


def _try_device(
    trial: ProbeStep, seen: StepProbe, samples: int, memory: DeviceMemory
) -> DeviceProbe:
    """Take a few steps, and see what the device's allocator reserves beyond what is counted."""
    counted_bytes = reserved_for(at_batch(*seen.logs, samples), NO_OPTIMIZER)
    memory.begin_anew()
    _some_steps(trial, samples)
    excess_bytes = memory.peak_reserved_bytes() - counted_bytes
    context = memory.context()
    memory.begin_anew()  # the training begins with nothing kept, and with a peak of its own
    return DeviceProbe(memory.limit_bytes(), memory.unified, context, excess_bytes)


def _size_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Add up blocks of memory, each once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


_LABEL_BYTES = 8  # an int64

# What is in the process's memory whatever the device: the rest is where the tensors are.
_OF_THE_PROCESS = ("runtime", "prefetch", "workers", "dataset")

# Where the allocator could not be tried: what it took for ResNet-18, batch 14, on glibc.
_ASSUMED = AllocatorTrial(kept_bytes=62 * 2**20, excess_bytes=60 * 2**20)


@dataclass(frozen=True)
class ForecastInputs:
    """What forecasts of a training rest on, beside its spec.

    The `processes` of it on this machine share the host's memory.
    """

    foresight: StepProbe
    dataset: DataSet
    worker_bytes: int | None = None
    processes: int = 1


def forecast(spec: RunSpec, grounds: ForecastInputs) -> Bill:
    """Write the bill of a training.

    Raises:
        UnlikeSteps: the network's steps could not be counted.
    """
    seen, step = grounds.foresight, grounds.foresight.step(spec.batch_size)
    batch_bytes = spec.batch_size * (grounds.dataset.input_bytes + _LABEL_BYTES)
    peak_bytes = step.peak_bytes
    if spec.accumulate > 1:  # gradients stay from one batch of the step to the next
        peak_bytes += seen.gradients_bytes - step.at_peak["gradients"]
    slack, how_slack = _slack(seen, step)
    # Gradients come while activations go. Where the items together are more than the peak, the
    # allocator has put one where the other was.
    together = seen.parameters_bytes + seen.gradients_bytes + seen.state_bytes + batch_bytes
    together += step.kept_bytes
    workspace = max(0, peak_bytes - together)
    not_at_once = max(0, together - peak_bytes)
    reused = min(slack, not_at_once)
    activations = step.kept_bytes - (not_at_once - reused)
    items = {
        "runtime": Item(
            seen.runtime_bytes, "measured", "interpreter and libraries, after some small steps"
        ),
        "device_context": _device_context(seen),
        "parameters": Item(seen.parameters_bytes, "counted", "weights and running statistics"),
        "gradients": Item(seen.gradients_bytes, "counted", "one value a trained weight"),
        "optimizer_state": Item(
            seen.state_bytes,
            "counted",
            f"{spec.optimizer}: {seen.optimizer.state:g} values a trained weight",
        ),
        "activations": Item(activations, "counted", _about_activations(activations, step)),
        "batch": Item(batch_bytes, "counted", _about_batch(spec, grounds.dataset)),
        "prefetch": _prefetch(spec, batch_bytes, copied=seen.device is not None),
        "workers": _workers(spec, grounds),
        "dataset": _dataset(spec, grounds.dataset),
        "workspace": Item(workspace, "counted", "gradients of activations, on their way"),
        "slack": Item(slack - reused, how_slack, "what allocator and libraries take besides"),
    }
    bill = _in_their_pools(spec, items, seen)
    if grounds.processes == 1:
        return bill
    limits = {
        pool: limit if pool == "device" else _shared(limit, grounds.processes)
        for pool, limit in bill.limits.items()
    }
    return replace(bill, limits=limits)


def _shared(limit: Limit, processes: int) -> Limit:
    return Limit(f"{limit.of}, shared by {processes} processes", limit.bytes // processes)


def _in_their_pools(spec: RunSpec, items: dict[str, Item], seen: StepProbe) -> Bill:
    device = seen.device
    if device is None:
        return Bill(items, memory_limits(spec.memory_limit, spec.workers))
    limit = Limit(f"memory of {spec.device}", device.limit_bytes)
    limits = memory_limits(spec.memory_limit, spec.workers, limit, unified=device.unified)
    of_process: Pool = "unified" if device.unified else "host"
    of_tensors: Pool = "unified" if device.unified else "device"
    placed = {
        name: replace(item, pool=of_process if name in _OF_THE_PROCESS else of_tensors)
        for name, item in items.items()
    }
    return Bill(placed, limits)


def _device_context(seen: StepProbe) -> Item:
    if seen.device is None:
        return Item(0, "counted", "none: the device is the CPU")
    context = seen.device.context
    return Item(context.bytes, context.how, context.note)


def _about_batch(spec: RunSpec, dataset: DataSet) -> str:
    if dataset.tokens is None:
        return f"{spec.batch_size:,} samples as float32"
    return f"{spec.batch_size:,} texts of {dataset.shape[0]:,} tokens, the most that one may have"


def _about_activations(shown_bytes: int, step: StepMemory) -> str:
    about = f"kept for the backward pass; the peak falls into {step.peak_phase}"
    if shown_bytes < step.kept_bytes:
        about += f", when some of {format_bytes(step.kept_bytes)} are gone"
    return about


def _slack(seen: StepProbe, step: StepMemory) -> tuple[int, How]:
    if seen.device is not None:
        reserved_bytes = seen.reserved_bytes(step.batch_size)
        excess_bytes = seen.device.excess_bytes
        return device_slack_bytes(excess_bytes, reserved_bytes, step.peak_bytes), "calibrated"
    how: How = "assumed" if seen.allocator is None else "calibrated"
    return slack_bytes(seen.allocator or _ASSUMED, step.kept_bytes), how


def _prefetch(spec: RunSpec, batch_bytes: int, *, copied: bool) -> Item:
    """Count what waits in the host's memory; a batch that is `copied` from there is one of it."""
    if not spec.workers:
        on_its_way = Item(batch_bytes, "counted", "a batch on its way to the device")
        return on_its_way if copied else Item(0, "counted", "no workers")
    batches = spec.workers * spec.prefetch + copied
    return Item(batches * batch_bytes, "counted", f"{batches} batches ready in shared memory")


def _workers(spec: RunSpec, grounds: ForecastInputs) -> Item:
    if not spec.workers:
        return Item(0, "counted", "no workers")
    each = grounds.worker_bytes or 0
    return Item(
        spec.workers * each, "calibrated", f"{spec.workers} x {format_bytes(each)} of their own"
    )


def _dataset(spec: RunSpec, dataset: DataSet) -> Item:
    if spec.source == "synthetic":
        return Item(0, "counted", "one batch, again and again")
    downloaded = is_store_url(spec.source) and spec.access == "download"
    if spec.source != "memory" and not downloaded:
        return Item(0, "counted", "read sample by sample")
    splits = spec.splits_read
    samples = sum(dataset.count(split, spec.samples) for split in splits)
    if dataset.held_bytes is not None:
        held = sum(dataset.held_bytes(split, spec.samples) for split in splits)
        held_as = "files as they are, compressed" if dataset.tokens is None else "texts"
        return Item(held, "counted", f"{samples:,} {held_as}")
    held = samples * (math.prod(dataset.shape) + _LABEL_BYTES)
    return Item(held, "counted", f"{samples:,} samples as bytes")
