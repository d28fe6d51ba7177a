"""Simulates an epoch: workers make batches in turn, the training uses them in order.

Training and workers share the cores. Workers have one thread each. Threads of the training wait for
each other at the end of every operation, and torch's spin meanwhile, so a worker on the core of one
of them slows down all of them. Workers that sleep (I/O) take no core.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

_PREFETCH = 2  # batches of each worker, as in torch
_WAITS, _RECEIVES, _TRAINS = range(3)  # what the training process does


class Batch(NamedTuple):
    """What a batch takes of a worker with a core to itself."""

    cpu_s: float
    sleep_s: float

    @property
    def busy(self) -> float:
        """The share of the time on a CPU."""
        total_s = self.cpu_s + self.sleep_s
        return self.cpu_s / total_s if total_s else 0.0

    def took_s(self, speed: float) -> float:
        """Return its time on a core that it shares."""
        return self.sleep_s + self.cpu_s / speed


@dataclass(frozen=True)
class Machine:
    """The cores, and how many of them the training would use at a time."""

    cores: int
    threads: float

    def speeds(self, training: float, workers: float) -> tuple[float, float]:
        """Return the speed of the training and of a worker, given what is runnable of both."""
        excess = training + workers - self.cores
        if excess <= 0:
            return 1.0, 1.0
        if training <= 1:  # no threads that wait for each other
            fair = self.cores / (training + workers)
            return fair, fair
        on_core = 1 + max(1.0, excess / training)
        spare = max(0.0, workers - excess)
        return on_core ** -min(excess, training, 2), (spare + excess / on_core) / workers


class Simulated(NamedTuple):
    """Mean times of the simulated steps; `training_s` and `load_s` with the waits for a core."""

    step_s: float
    training_s: float
    load_s: float


@dataclass(frozen=True)
class SimulatedEpoch:
    """The steps of an epoch: the training of each, alone, and the batch that it uses.

    `receive_s` and `hand_over_s` are what a batch from a worker costs the training process, and the
    worker besides making it. `length` is the number of steps of the real epoch, of which these may
    be the beginning.
    """

    training_s: Sequence[float]
    batches: Sequence[Batch]
    receive_s: float = 0.0
    hand_over_s: float = 0.0
    length: int = 0

    def with_workers(self, workers: int, machine: Machine) -> Simulated:
        """Return the mean times with so many workers."""
        count = len(self.batches)
        if workers == 0:
            training_s = sum(self.training_s) / count
            load_s = sum(each.cpu_s + each.sleep_s for each in self.batches) / count
            return Simulated(training_s + load_s, training_s, load_s)
        ends_s, training_s, load_s = self._simulate(workers, machine)
        load_s = load_s / count - self.hand_over_s
        # A batch keeps a core busy for its CPU time, however the workers take turns.
        least_s = (
            sum(each.cpu_s for each in self.batches) / count + self.hand_over_s
        ) / machine.cores
        step_s = max(_mean_step_s(ends_s, self.length), least_s)
        return Simulated(step_s, training_s / count, load_s)

    def _simulate(self, workers: int, machine: Machine) -> tuple[list[float], float, float]:
        """Return the end of each step, and the time that all training and all loading took."""
        batches = [Batch(each.cpu_s + self.hand_over_s, each.sleep_s) for each in self.batches]
        queues: list[deque[int]] = [deque() for _ in range(workers)]
        left = [1.0] * len(batches)  # of each batch
        to_give = iter(range(len(batches)))

        def give(count: int) -> None:
            """Give the next batches to the workers in turn."""
            for number in islice(to_give, count):
                queues[number % workers].append(number)

        give(_PREFETCH * workers)
        now_s = training_s = load_s = own_left_s = 0.0
        ends_s: list[float] = []
        does = _WAITS
        while len(ends_s) < len(batches):
            if does == _WAITS and not left[len(ends_s)]:
                does, own_left_s = _RECEIVES, self.receive_s
                give(1)
            loading = [queue[0] for queue in queues if queue]
            runnable = sum(batches[each].busy for each in loading)
            own = {_WAITS: 0.0, _RECEIVES: 1.0, _TRAINS: machine.threads}[does]
            speed, worker_speed = machine.speeds(own, runnable)
            whole_s = [batches[each].took_s(worker_speed) for each in loading]
            until_s = [left[each] * took_s for each, took_s in zip(loading, whole_s, strict=True)]
            own_until_s = math.inf if does == _WAITS else own_left_s / speed
            passes_s = min([own_until_s, *until_s])
            now_s += passes_s
            load_s += passes_s * len(loading)
            training_s += passes_s if does == _TRAINS else 0.0
            for each, took_s, end_s in zip(loading, whole_s, until_s, strict=True):
                if end_s <= passes_s:  # one of these, or of the training, ends every time
                    left[each] = 0.0
                    queues[each % workers].popleft()
                else:
                    left[each] -= passes_s / took_s
            if own_until_s > passes_s:
                own_left_s -= passes_s * speed
            elif does == _RECEIVES:
                does, own_left_s = _TRAINS, self.training_s[len(ends_s)]
            else:
                does = _WAITS
                ends_s.append(now_s)
        return ends_s, training_s, load_s


def _mean_step_s(ends_s: Sequence[float], length: int) -> float:
    """Return the mean step of an epoch whose first and last steps are simulated in full."""
    count = len(ends_s)
    if length <= count or count < 8:
        return ends_s[-1] / count
    first, last = count // 4, count - count // 4
    steady_s = (ends_s[last] - ends_s[first]) / (last - first)
    return (ends_s[-1] + (length - count) * steady_s) / length
