"""What would still more processes bring, each on a separate machine, over a given network?

The prediction combines the measured step of the base with arithmetic:

    own(n)        loading, transfer, forward and backward shrink with the samples n of a process's
                  part; the optimiser and the rest work on all weights and stay constant
    allreduce(p)  a ring all-reduce sends 2 (p-1)/p of the gradients over each link, in 2 (p-1)
                  turns for each bucket:
                  2 (p-1)/p * bytes / bandwidth + 2 (p-1) * buckets * latency
    hidden(p)     the share of it that overlaps with the backward pass, at most all of that pass
    step(p)       own + allreduce - hidden

The process with the largest part of the batch sets the pace: ceil(batch / p) samples. The
prediction is optimistic for small parts, on which a machine computes less efficiently, and it
ignores stragglers.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def exposed_s(self, processes: int, backward_s: float) -> float:
        """Return the time of an all-reduce that the backward pass does not hide."""
        allreduce_s = self.network.allreduce_s(self.gradient_bytes, processes)
        return allreduce_s - min(self.overlap_share * allreduce_s, backward_s)


@dataclass(frozen=True)
class Base:
    """The measured step of the fewest processes.

    `communication_s`, part of `step_s` and of `backward_s`, is 0 for one process. `fixed_s` is the
    part of a step that does not depend on the samples of a process.
    """

    processes: int
    batch_size: int
    samples_per_s: float
    step_s: float
    backward_s: float
    fixed_s: float
    communication_s: float = 0.0

    def part_of(self, batch_size: int, processes: int) -> float:
        """Return the largest part of a batch, as a multiple of the base's."""
        return _largest_part(batch_size, processes) / _largest_part(self.batch_size, self.processes)

    def own_s(self, part: float) -> float:
        """Return a process's step without communication, on a multiple of the base's part."""
        return (self.step_s - self.communication_s - self.fixed_s) * part + self.fixed_s

    def own_backward_s(self, part: float) -> float:
        """Return the backward pass of such a step."""
        return (self.backward_s - self.communication_s) * part


def predict(
    mode: Mode, batch_size: int, processes: int, base: Base, inputs: ScalingInputs
) -> PredictedScaling:
    """Predict the step of processes that share a batch, and the speed-up."""
    part = base.part_of(batch_size, processes)
    exposed_s = inputs.exposed_s(processes, base.own_backward_s(part))
    step_s = base.own_s(part) + exposed_s
    speedup = batch_size / base.batch_size * base.step_s / step_s
    return {
        "mode": mode,
        "processes": processes,
        "batch_size": batch_size,
        "samples_per_s": speedup * base.samples_per_s,
        "speedup": speedup,
        "efficiency": speedup * base.processes / processes,
        "step_s": step_s,
        "exchange_s": inputs.network.allreduce_s(inputs.gradient_bytes, processes),
        "exposed_s": exposed_s,
    }


def measured_base(sweep: Sweep, scale: Scale, mode: Mode) -> Base | None:
    """Return the base of a mode from its round of median speed; None without figures.

    All figures come from one round, so that they are consistent with each other.
    """
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


def overlap_share(exposed_s: Sequence[float], allreduce_s: Sequence[float]) -> float:
    """Return the share of all-reduces that was hidden; 0 if more was exposed than they take."""
    return max(0.0, 1 - sum(exposed_s) / sum(allreduce_s))


def _largest_part(batch_size: int, processes: int) -> int:
    return -(-batch_size // processes)
