"""What would still more processes bring, each on a machine of its own, over a given network?

A prediction, from what a process of the base was measured to do and from arithmetic:

    own(n)       loading, transfer, forward and backward shrink with the samples n of a process's
                 part; the optimiser and the rest work on all weights, and stay as they are
    exchange(p)  a ring all-reduce sends 2 (p-1)/p of the gradients over each link, in 2 (p-1)
                 turns for each portion that they are sent in:
                 2 (p-1)/p * bytes / bandwidth + 2 (p-1) * portions * latency
    hidden(p)    a share of that goes on beside the backward pass, and never more than that takes
    step(p)      own + exchange - hidden

The process with the largest part of the batch sets the pace: ceil(batch / p) samples. It is too
hopeful for small parts, on which a machine computes less efficiently, and knows of no stragglers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from stepscope.analyze.scaling import Mode, Scale, communication_of, trials_with_rate
from stepscope.records.sweep_folder import Sweep

_FIXED = ("optimizer_s", "other_s")
# Of DistributedDataParallel: a small first portion, so that sending begins early.
_FIRST_PORTION_BYTES = 2**20
_PORTION_BYTES = 25 * 2**20


@dataclass(frozen=True)
class NetworkLink:
    """What lies between the machines: the bandwidth of each link, and the time of a message."""

    bandwidth_bytes_per_s: float
    latency_s: float

    def exchange_s(self, size_bytes: float, processes: int) -> float:
        """Return how long a ring all-reduce takes, portion after portion."""
        turns = 2 * (processes - 1)
        sending_s = turns / processes * size_bytes / self.bandwidth_bytes_per_s
        return sending_s + turns * portions(size_bytes) * self.latency_s


def portions(size_bytes: float) -> int:
    """Return in how many portions gradients are sent: a portion is as large as can be."""
    return 1 + max(0, ceil((size_bytes - _FIRST_PORTION_BYTES) / _PORTION_BYTES))


@dataclass(frozen=True)
class ScalingInputs:
    """What a prediction stands on, beside the base: `overlap_share` of an exchange is hidden."""

    network: NetworkLink
    gradient_bytes: int
    overlap_share: float

    def exposed_s(self, processes: int, backward_s: float) -> float:
        """Return what of an exchange is not hidden behind a backward pass."""
        exchange_s = self.network.exchange_s(self.gradient_bytes, processes)
        return exchange_s - min(self.overlap_share * exchange_s, backward_s)


@dataclass(frozen=True)
class Base:
    """What the fewest processes were measured to do in a step.

    `communication_s`, part of `step_s` and of `backward_s`, is 0 for one process. `fixed_s` is what
    of a step does not depend on the samples of a process's part.
    """

    processes: int
    batch_size: int
    samples_per_s: float
    step_s: float
    backward_s: float
    fixed_s: float
    communication_s: float = 0.0

    def part_of(self, batch_size: int, processes: int) -> float:
        """Return the largest part of a batch, as a multiple of that of the base."""
        return _largest_part(batch_size, processes) / _largest_part(self.batch_size, self.processes)

    def own_s(self, part: float) -> float:
        """Return the step of a process without communication, on a multiple of its part."""
        return (self.step_s - self.communication_s - self.fixed_s) * part + self.fixed_s

    def own_backward_s(self, part: float) -> float:
        """Return its backward pass."""
        return (self.backward_s - self.communication_s) * part


@dataclass(frozen=True)
class Predicted:
    """What a number of processes is predicted to come to; `exposed_s` is of `exchange_s`."""

    mode: Mode
    processes: int
    batch_size: int
    samples_per_s: float
    speedup: float
    efficiency: float
    step_s: float
    exchange_s: float
    exposed_s: float


def predict(
    mode: Mode, batch_size: int, processes: int, base: Base, grounds: ScalingInputs
) -> Predicted:
    """Predict the step of processes that have a batch together, and what it comes to."""
    part = base.part_of(batch_size, processes)
    exposed_s = grounds.exposed_s(processes, base.own_backward_s(part))
    step_s = base.own_s(part) + exposed_s
    speedup = batch_size / base.batch_size * base.step_s / step_s
    return Predicted(
        mode=mode,
        processes=processes,
        batch_size=batch_size,
        samples_per_s=speedup * base.samples_per_s,
        speedup=speedup,
        efficiency=speedup * base.processes / processes,
        step_s=step_s,
        exchange_s=grounds.network.exchange_s(grounds.gradient_bytes, processes),
        exposed_s=exposed_s,
    )


def measured_base(sweep: Sweep, scale: Scale, mode: Mode) -> Base | None:
    """Return what the base of a mode did in the round of middle speed; None without figures.

    One round, so that its figures belong together: medians of each of them need not.
    """
    trials = trials_with_rate(sweep, scale.values(mode, scale.base))
    if not trials:
        return None
    by_rate = sorted(trials, key=lambda trial: float(trial.metrics["steady_samples_per_s"]))
    middle = by_rate[(len(trials) - 1) // 2]
    steady = middle.metrics["steady"]
    return Base(
        processes=scale.base,
        batch_size=scale.total_batch(mode, scale.base),
        samples_per_s=middle.metrics["steady_samples_per_s"],
        step_s=steady["step_s"],
        backward_s=steady["backward_s"],
        fixed_s=sum(steady[name] for name in _FIXED),
        communication_s=communication_of(sweep, [middle]) or 0.0,
    )


def overlap_share(exposed_s: Sequence[float], exchange_s: Sequence[float]) -> float:
    """Return the share of exchanges that was hidden: none where more was seen than they take."""
    return max(0.0, 1 - sum(exposed_s) / sum(exchange_s))


def _largest_part(batch_size: int, processes: int) -> int:
    return -(-batch_size // processes)
