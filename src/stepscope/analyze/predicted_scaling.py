"""What would still more processes bring, each on a separate machine, over a given network?

Loading, transfer, forward and backward shrink with the largest part of the batch, ceil(batch / p)
samples; the optimiser and the rest stay constant. A ring all-reduce takes

    2 (p-1)/p * bytes / bandwidth + 2 (p-1) * buckets * latency

less the share that overlaps with the backward pass. The prediction ignores stragglers, and that a
machine computes less efficiently on small parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from stepscope.records.types import PredictedScaling

Mode = Literal["strong", "weak"]

# The bucket sizes of DistributedDataParallel: a small first one, so that sending starts early.
_FIRST_BUCKET_BYTES = 2**20
_BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class ScalingInputs:
    """The network between the machines and its load; `overlap_share` of an all-reduce is hidden."""

    bandwidth_bytes_per_s: float
    latency_s: float
    gradient_bytes: int
    overlap_share: float

    def allreduce_s(self, processes: int) -> float:
        """Return the time of a ring all-reduce, bucket after bucket."""
        turns = 2 * (processes - 1)
        sending_s = turns / processes * self.gradient_bytes / self.bandwidth_bytes_per_s
        return sending_s + turns * bucket_count(self.gradient_bytes) * self.latency_s


def bucket_count(size_bytes: float) -> int:
    """Return the number of buckets in which DistributedDataParallel sends the gradients."""
    return 1 + max(0, ceil((size_bytes - _FIRST_BUCKET_BYTES) / _BUCKET_BYTES))


@dataclass(frozen=True)
class Base:
    """The measured step of the fewest processes.

    `communication_s` is part of `backward_s`. `fixed_s` does not depend on the samples of a
    process.
    """

    processes: int
    batch_size: int
    samples_per_s: float
    step_s: float
    backward_s: float
    fixed_s: float
    communication_s: float = 0.0


def predict(
    mode: Mode, batch_size: int, processes: int, base: Base, inputs: ScalingInputs
) -> PredictedScaling:
    """Predict the step of processes that share a batch, and the speed-up."""
    part = ceil(batch_size / processes) / ceil(base.batch_size / base.processes)
    allreduce_s = inputs.allreduce_s(processes)
    backward_s = (base.backward_s - base.communication_s) * part
    exposed_s = allreduce_s - min(inputs.overlap_share * allreduce_s, backward_s)
    own_s = (base.step_s - base.communication_s - base.fixed_s) * part + base.fixed_s
    step_s = own_s + exposed_s
    speedup = batch_size / base.batch_size * base.step_s / step_s
    return {
        "mode": mode,
        "processes": processes,
        "batch_size": batch_size,
        "samples_per_s": speedup * base.samples_per_s,
        "speedup": speedup,
        "efficiency": speedup * base.processes / processes,
        "step_s": step_s,
        "exchange_s": allreduce_s,
        "exposed_s": exposed_s,
    }
