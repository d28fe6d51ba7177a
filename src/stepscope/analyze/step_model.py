"""The parts of a mean step, and how long it would take with another loader.

A step with loader workers takes as long as the slowest of three: the training itself, a batch over
the number of workers, and the CPU time of both over the cores. Without workers, training and
loading add up. `bench/what_if.py` compares the predictions with measured runs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from stepscope.analyze.findings.finding import RunView
from stepscope.errors import RequestError
from stepscope.stats import median

FEWEST_STEPS = 10
# A change of fewer workers, or none, that costs no more than this is preferred.
_AS_GOOD = 0.03
_MOST_WORKERS = 8
# Beyond this share of the cores' time, workers and training wait for each other.
_CROWDED = 0.9


@dataclass(frozen=True)
class StepModel:
    """The parts of a mean step, in seconds, and what they run on.

    `training_cpu_s` and `load_cpu_s` are the CPU time of all threads for one step and one batch.
    """

    step_s: float
    data_s: float
    load_s: float
    load_cpu_s: float
    training_cpu_s: float
    workers: int
    cpus: int

    @property
    def training_s(self) -> float:
        """The step without waiting for data, beside the loader that was measured."""
        return self.step_s - self.data_s

    @cached_property
    def alone_s(self) -> float:
        """The step without waiting for data, if no worker took CPU time meanwhile."""
        if self.workers == 0:
            return self.training_s
        crowded = (self.training_cpu_s + self.load_cpu_s) / self.cpus / self.step_s
        wanted = self.training_cpu_s / self.training_s + self.load_cpu_s / self.step_s
        slowed = max(1.0, wanted / self.cpus) if crowded > _CROWDED else 1.0
        return self.training_s / slowed

    @property
    def batch_s(self) -> float:
        """The time of one worker for one batch, with a core of its own."""
        if self.workers == 0:  # workers have one thread each
            return max(self.load_s, self.load_cpu_s)
        crowded = (self.training_cpu_s + self.load_cpu_s) / self.cpus / self.step_s
        return self.load_cpu_s if crowded > _CROWDED else self.load_s

    def step_with(self, workers: int) -> float:
        """Return the expected time of a step with another number of workers."""
        if workers == self.workers:
            return self.step_s
        if workers == 0:
            return self.alone_s + self.batch_s
        together_s = (self.training_cpu_s + self.load_cpu_s) / self.cpus
        return max(self.alone_s, self.batch_s / workers, together_s)

    def step_without_loading(self) -> float:
        """Return the expected time of a step whose data costs nothing."""
        return self.alone_s

    def with_cheaper_loading(self, share: float) -> float:
        """Return the expected time of a step if loading does without this share of its work."""
        less = StepModel(
            step_s=self.step_s,
            data_s=self.data_s,
            load_s=self.load_s * (1 - share),
            load_cpu_s=self.load_cpu_s * (1 - share),
            training_cpu_s=self.training_cpu_s,
            workers=self.workers,
            cpus=self.cpus,
        )
        if self.workers == 0:
            return self.alone_s + less.load_s
        together_s = (less.training_cpu_s + less.load_cpu_s) / self.cpus
        return max(self.alone_s, self.batch_s * (1 - share) / self.workers, together_s)

    def best_workers(self) -> int:
        """Return the smallest number of workers that is about as fast as any."""
        most = min(_MOST_WORKERS, max(self.cpus, 1))
        times = {workers: self.step_with(workers) for workers in range(most + 1)}
        fastest_s = min(times.values())
        return min(w for w, step_s in times.items() if step_s <= fastest_s * (1 + _AS_GOOD))


def step_model(view: RunView) -> StepModel | None:
    """Return the parts of a run's mean step; None if its loading was not timed."""
    load_s, workers = view.mean("load_s"), view.workers
    if load_s is None or workers is None or len(view.step_s) < FEWEST_STEPS:
        return None
    load_cpu_s = view.mean("load_cpu_s")
    load_cpu_s = load_s if load_cpu_s is None else load_cpu_s
    step_s, data_s = view.mean("step_s") or 0.0, view.mean("data_s") or 0.0
    cpus = view.run.info.get("environment", {}).get("cpus_usable") or 1
    cpu_s = training_cpu_s(view)
    if cpu_s is None:  # all of its threads were busy
        threads = view.run.info.get("environment", {}).get("threads") or 1
        cpu_s = (step_s - data_s) * min(int(threads), cpus)
    elif workers == 0:
        cpu_s = max(cpu_s - load_cpu_s, 0.0)
    return StepModel(step_s, data_s, load_s, load_cpu_s, cpu_s, workers, cpus)


def training_cpu_s(view: RunView) -> float | None:
    """Return the CPU time of the training process for one step; None if not sampled."""
    starts, ends = view.column("start_s"), view.step_s
    table = view.run.telemetry
    if not starts:
        return None
    begin_s, end_s = starts[0], starts[-1] + ends[-1]
    inside = [
        (time_s, cpu_s)
        for time_s, cpu_s in zip(table["time_s"], table["main_cpu_s"], strict=True)
        if cpu_s is not None and begin_s <= time_s <= end_s
    ]
    if len(inside) < 2 or inside[-1][0] - inside[0][0] < 0.3 * (end_s - begin_s):
        return None
    rate = float((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]))
    return rate * view.mean_step_s


def restart_s(view: RunView) -> float:
    """Return the time of starting and ending workers again after the first epoch."""
    steps, waits_s = view.run.steps, defaultdict[int, float](float)
    usual_s = median(view.column("data_s")) if view.step_s else 0.0
    for epoch, step, data_s in zip(steps["epoch"], steps["step"], steps["data_s"], strict=True):
        if step == 1 and data_s is not None:
            waits_s[epoch] = max(0.0, data_s - usual_s)
    total_s = 0.0
    for row in view.run.epoch_rows("train")[1:]:
        if row["total_s"]:
            total_s += row["loader_start_s"] + row["loader_stop_s"] + waits_s[row["epoch"]]
    return total_s


def batch_costs(view: RunView) -> tuple[float, float, float]:
    """Return the fixed time of a step, the time of each sample, and the usual batch size.

    They come from batches of different sizes, as the last one of an epoch often is. Without such
    batches only the optimiser and the time outside the phases count as fixed.
    """
    sizes = view.column("samples")
    known = [
        (size, step_s - data_s)
        for size, step_s, data_s in zip(sizes, view.step_s, view.column("data_s"), strict=True)
        if size and data_s is not None
    ]
    if not known:
        raise RequestError("what-if: batch_size: the samples of a step are unknown.")
    usual = max({size for size, _ in known}, key=[size for size, _ in known].count)
    mean_s = view.mean("step_s") or 0.0
    large = sorted(took_s for size, took_s in known if size == usual)
    small = [(size, took_s) for size, took_s in known if size <= 0.75 * usual]
    if len(small) >= 3:
        size = sum(size for size, _ in small) / len(small)
        small_s = sorted(took_s for _, took_s in small)[len(small) // 2]
        each_s = (large[len(large) // 2] - small_s) / (usual - size)
        each_s = min(max(each_s, 0.0), mean_s / usual)
    else:
        fixed_s = (view.mean("optimizer_s") or 0.0) + (view.mean("other_s") or 0.0)
        each_s = max(mean_s - fixed_s, 0.0) / usual
    return max(mean_s - each_s * usual, 0.0), each_s, usual
