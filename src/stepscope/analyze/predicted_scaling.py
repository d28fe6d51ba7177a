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

from stepscope.analyze.scaling import Mode, Scale, communication_of, trials_with_rate
from stepscope.records.sweep_folder import Sweep
from stepscope.records.types import PredictedScaling

# The bucket sizes of DistributedDataParallel: a small first one, so that sending starts early.
_FIRST_BUCKET_BYTES = 2**20
_BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class NetworkLink:
    """The network between the machines: bandwidth of each link, latency of a message."""

    bandwidth_bytes_per_s: float
    latency_s: float

    def allreduce_s(self, size_bytes: float, processes: int) -> float:
        """Return the time of a ring all-reduce, bucket after bucket."""
        turns = 2 * (processes - 1)
        sending_s = turns / processes * size_bytes / self.bandwidth_bytes_per_s
        return sending_s + turns * bucket_count(size_bytes) * self.latency_s


def bucket_count(size_bytes: float) -> int:
    """Return the number of buckets in which DistributedDataParallel sends the gradients."""
    return 1 + max(0, ceil((size_bytes - _FIRST_BUCKET_BYTES) / _BUCKET_BYTES))


@dataclass(frozen=True)
class ScalingInputs:
    """The inputs of a prediction: `overlap_share` of an all-reduce is hidden."""

    network: NetworkLink
    gradient_bytes: int
    overlap_share: float


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
    allreduce_s = inputs.network.allreduce_s(inputs.gradient_bytes, processes)
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


def measured_base(sweep: Sweep, scale: Scale, mode: Mode) -> Base | None:
    """Return the base of a mode from its round of median speed; None without figures."""
    trials = trials_with_rate(sweep, scale.values(mode, scale.base))
    if not trials:
        return None
    by_rate = sorted(trials, key=lambda trial: trial.metrics["steady_samples_per_s"] or 0.0)
    middle = by_rate[(len(trials) - 1) // 2]
    steady, rate = middle.metrics["steady"], middle.metrics["steady_samples_per_s"]
    step_s, backward_s = steady["step_s"], steady["backward_s"]
    if rate is None or step_s is None or backward_s is None:
        return None
    return Base(
        processes=scale.base,
        batch_size=scale.total_batch(mode, scale.base),
        samples_per_s=rate,
        step_s=step_s,
        backward_s=backward_s,
        fixed_s=(steady["optimizer_s"] or 0.0) + (steady["other_s"] or 0.0),
        communication_s=communication_of(sweep, [middle]) or 0.0,
    )
