"""The memory bill of a training, forecast before it begins."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stepscope.data.address import is_store_url
from stepscope.data.catalogue import DataSet
from stepscope.estimate.limits import memory_limits
from stepscope.estimate.memory_bill import Bill, How, Item, Limit, Pool
from stepscope.estimate.slack import AllocatorTrial, device_slack_bytes, slack_bytes
from stepscope.estimate.step_ledger import StepMemory
from stepscope.spec import RunSpec
from stepscope.train.foresee import Foresight
from stepscope.units import format_bytes

_LABEL_BYTES = 8  # an int64

# What is in the process's memory whatever the device: the rest is where the tensors are.
_OF_THE_PROCESS = ("runtime", "prefetch", "workers", "dataset")

# Where the allocator could not be tried: what it took for ResNet-18, batch 14, on glibc.
_ASSUMED = AllocatorTrial(kept_bytes=62 * 2**20, excess_bytes=60 * 2**20)


@dataclass(frozen=True)
class Grounds:
    """What forecasts of a training rest on, beside its spec.

    The `processes` of it on this machine share the host's memory.
    """

    foresight: Foresight
    dataset: DataSet
    worker_bytes: int | None = None
    processes: int = 1


def forecast(spec: RunSpec, grounds: Grounds) -> Bill:
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


def _in_their_pools(spec: RunSpec, items: dict[str, Item], seen: Foresight) -> Bill:
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


def _device_context(seen: Foresight) -> Item:
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


def _slack(seen: Foresight, step: StepMemory) -> tuple[int, How]:
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


def _workers(spec: RunSpec, grounds: Grounds) -> Item:
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
