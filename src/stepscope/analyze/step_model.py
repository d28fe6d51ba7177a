"""The parts of a mean step, and how long it would take with another loader.

What a run measured is put into `analyze.loader_simulation`. If workers took CPU time from the
training, the training alone and the workers' sleep are found by simulating what was measured.
`bench/what_if.py` compares the predictions with measured runs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, mode

from stepscope.analyze.findings.finding import RunView
from stepscope.analyze.loader_simulation import Batch, Machine, SimulatedEpoch
from stepscope.errors import RequestError
from stepscope.stats.intervals import known_mean, median, quantile

FEWEST_STEPS = 10
# Fewer workers, or none, are preferred if they cost no more than this.
_AS_GOOD = 0.03
_MOST_WORKERS = 8
_MOST_SIMULATED = 120  # steps
_ROUNDS = 8  # of fitting what was measured
# Measured by bench/what_if.py: what handing over a batch costs a worker, besides making it, and
# taking it costs the training process; and the CPU time of a batch in a worker over that in the
# training process.
_HAND_OVER_S = 0.001
_RECEIVE_S = 0.0008
_MOST_RECEIVE_S = 0.0015
_IN_WORKER = 1.1


@dataclass(frozen=True)
class StepModel:
    """The parts of a mean step, in seconds, and what they run on.

    `epoch` has the training and the batch of each step as they would be with cores to spare, and
    the CPU time of batches as in the measured process: a worker, or the training process.
    """

    step_s: float
    workers: int
    machine: Machine
    epoch: SimulatedEpoch
    on_cpu: bool = True

    @cached_property
    def _scale(self) -> float:
        """What was measured over what is simulated."""
        if not self.on_cpu:  # the device works while the training process loads
            return 1.0
        return self.step_s / self.epoch.with_workers(self.workers, self.machine).step_s

    def step_with(self, workers: int) -> float:
        """Return the expected time of a step with another number of workers."""
        if workers == self.workers:
            return self.step_s
        if workers == 0:
            alone = _scaled(self.epoch, cpu=1 / _IN_WORKER)
            return alone.with_workers(0, self.machine).step_s
        ratio = _IN_WORKER if self.workers == 0 else 1.0
        return self._step_s(_scaled(self.epoch, cpu=ratio), workers)

    def step_without_loading(self) -> float:
        """Return the expected time of a step whose data costs nothing."""
        return sum(self.epoch.training_s) / len(self.epoch.training_s)

    def with_cheaper_loading(self, share: float) -> float:
        """Return the expected time of a step if loading does without this share of its work."""
        return self._step_s(_scaled(self.epoch, cpu=1 - share, sleep=1 - share), self.workers)

    def _step_s(self, epoch: SimulatedEpoch, workers: int) -> float:
        return self._scale * epoch.with_workers(workers, self.machine).step_s

    def best_workers(self) -> int:
        """Return the smallest number of workers that is about as fast as any."""
        times = {workers: self.step_with(workers) for workers in range(_MOST_WORKERS + 1)}
        fastest_s = min(times.values())
        return min(w for w, step_s in times.items() if step_s <= fastest_s * (1 + _AS_GOOD))


def _scaled(epoch: SimulatedEpoch, cpu: float = 1.0, sleep: float = 1.0) -> SimulatedEpoch:
    batches = [Batch(each.cpu_s * cpu, each.sleep_s * sleep) for each in epoch.batches]
    return replace(epoch, batches=batches)


def step_model(view: RunView) -> StepModel | None:
    """Return the parts of a run's mean step; None if its loading was not timed."""
    workers, loads_s = view.workers, view.column("load_s")
    mean_load_s = known_mean(loads_s)
    if mean_load_s is None or workers is None or len(view.step_s) < FEWEST_STEPS:
        return None
    epoch = _measured_epoch(view, mean_load_s, workers)
    environment = view.run.info.get("environment", {})
    cpus = environment.get("cpus_usable") or 1
    most = float(min(int(environment.get("threads") or 1), cpus)) if view.on_cpu else 1.0
    cpu_s = _training_cpu_s(view)
    if cpu_s is not None and workers == 0:
        cpu_s -= known_mean(view.column("load_cpu_s")) or 0.0
    model = StepModel(view.mean_step_s, workers, Machine(cpus, most), epoch, view.on_cpu)
    if workers == 0:
        return replace(model, machine=_used(model.machine, cpu_s, model.step_without_loading()))
    return _fitted(model, mean_load_s, cpu_s)


def loading_on_cpu(view: RunView) -> float | None:
    """Return the share of the time of loading on a CPU, of the batches that record it."""
    both = zip(view.column("load_cpu_s"), view.column("load_s"), strict=True)
    known = [(cpu_s, load_s) for cpu_s, load_s in both if None not in (cpu_s, load_s)]
    known_s = sum(load_s for _, load_s in known)
    return sum(cpu_s for cpu_s, _ in known) / known_s if known_s else None


def _measured_epoch(view: RunView, mean_load_s: float, workers: int) -> SimulatedEpoch:
    """Return the steps as they were; `sleep_s` still has the workers' waits for a core."""
    data_s = [each or 0.0 for each in view.column("data_s")]
    both = zip(view.step_s, data_s, strict=True)
    training_s = [max(0.0, step_s - wait_s) for step_s, wait_s in both]
    loads_s = [mean_load_s if each is None else each for each in view.column("load_s")]
    cpus_s = view.column("load_cpu_s")
    on_cpu = loading_on_cpu(view)
    busy = 1.0 if on_cpu is None else min(1.0, on_cpu)
    batches = []
    for load, cpu in zip(loads_s, cpus_s, strict=True):
        cpu_s = busy * load if cpu is None else cpu
        batches.append(Batch(cpu_s, max(0.0, load - cpu_s)))
    receive_s = _RECEIVE_S
    if workers:
        receive_s = min(_MOST_RECEIVE_S, quantile(sorted(data_s), 0.25))
    epochs = len(set(view.column("epoch")))
    length = max(FEWEST_STEPS, len(batches) // epochs)
    simulated = slice(min(_MOST_SIMULATED, length))
    trains = _share_of_mean(training_s, simulated)
    loads = _share_of_mean([each.cpu_s + each.sleep_s for each in batches], simulated)
    return SimulatedEpoch(
        [each / trains for each in training_s[simulated]],
        [Batch(each.cpu_s / loads, each.sleep_s / loads) for each in batches[simulated]],
        receive_s,
        _HAND_OVER_S,
        length=length,
    )


def _share_of_mean(times_s: list[float], some: slice) -> float:
    """Return the mean of some times over that of all: epochs differ."""
    total_s, some_s = sum(times_s), sum(times_s[some])
    if not total_s or not some_s:
        return 1.0
    return some_s / len(times_s[some]) / (total_s / len(times_s))


def _used(machine: Machine, cpu_s: float | None, training_s: float) -> Machine:
    """Return how many of its threads the training would use; all if its CPU time is unknown."""
    if cpu_s is None or not training_s:
        return machine
    return replace(machine, threads=min(max(1.0, cpu_s / training_s), machine.threads))


def _without_waits_for_cores(model: StepModel) -> SimulatedEpoch:
    """Return the epoch without waits that only some batches have and a shared core explains."""
    shared = (model.workers + model.machine.threads) / model.machine.cores
    least_s = quantile(sorted(each.sleep_s for each in model.epoch.batches), 0.1)
    batches = [
        each
        if each.sleep_s > shared * each.cpu_s
        else Batch(each.cpu_s, min(least_s, each.sleep_s))
        for each in model.epoch.batches
    ]
    return replace(model.epoch, batches=batches)


def _fitted(model: StepModel, load_s: float, cpu_s: float | None) -> StepModel:
    """Return the model that, simulated, has the training and loading times that were measured."""
    measured = _without_waits_for_cores(model)
    count = len(measured.batches)
    training_s = alone_s = sum(measured.training_s) / count
    waits_s = sum(each.sleep_s for each in measured.batches) / count
    asleep = 1.0
    for _ in range(_ROUNDS):
        machine = _used(model.machine, cpu_s, alone_s)
        epoch = replace(_scaled(measured, sleep=asleep), training_s=[alone_s] * count)
        found = epoch.with_workers(model.workers, machine)
        alone_s *= training_s / found.training_s if found.training_s else 1.0
        if waits_s:
            asleep = min(1.0, max(0.0, asleep + (load_s - found.load_s) / waits_s))
    return replace(model, epoch=epoch, machine=machine)


def _training_cpu_s(view: RunView) -> float | None:
    """Return the CPU time of the training process for one step; None if not sampled."""
    starts, table = view.column("start_s"), view.run.telemetry
    begin_s, end_s = starts[0], starts[-1] + view.step_s[-1]
    inside = [
        (time_s, cpu_s)
        for time_s, cpu_s in zip(table["time_s"], table["main_cpu_s"], strict=True)
        if cpu_s is not None and begin_s <= time_s <= end_s
    ]
    if len(inside) < 2 or inside[-1][0] - inside[0][0] < 0.3 * (end_s - begin_s):
        return None
    (first_s, before_s), *_, (last_s, after_s) = inside
    return float((after_s - before_s) / (last_s - first_s)) * view.mean_step_s


def restart_s(view: RunView) -> float:
    """Return the time of starting and ending workers again after the first epoch."""
    steps, waits_s = view.run.steps, defaultdict[int, float](float)
    usual_s = median(view.column("data_s")) if view.step_s else 0.0
    for epoch, step, data_s in zip(steps["epoch"], steps["step"], steps["data_s"], strict=True):
        if step == 1 and data_s is not None:
            waits_s[epoch] = max(0.0, data_s - usual_s)
    return sum(
        (row["loader_start_s"] or 0.0) + (row["loader_stop_s"] or 0.0) + waits_s[row["epoch"]]
        for row in view.trained[1:]
        if row["total_s"]
    )


def batch_costs(view: RunView) -> tuple[float, float, float]:
    """Return the fixed time of a step, the time of each sample, and the usual batch size.

    They come from batches of different sizes, as the last one of an epoch often is. Without such
    batches only the optimiser and the time outside the phases count as fixed. Waiting for data
    grows with the batch.
    """
    waits = view.column("data_s")
    known = [
        (size, step_s - data_s)
        for size, step_s, data_s in zip(view.column("samples"), view.step_s, waits, strict=True)
        if size and data_s is not None
    ]
    if not known:
        raise RequestError(
            "what-if: batch_size: wanted steps with their samples, found none. "
            "Count them: stepscope trace SCRIPT"
        )
    usual = mode(size for size, _ in known)
    training_s = fmean(took_s for _, took_s in known)
    small = [(size, took_s) for size, took_s in known if size <= 0.75 * usual]
    if len(small) >= 3:
        size = fmean(size for size, _ in small)
        large_s = median([took_s for size, took_s in known if size == usual])
        each_s = (large_s - median([took_s for _, took_s in small])) / (usual - size)
        each_s = min(max(each_s, 0.0), training_s / usual)
    else:
        each_s = max(training_s - view.mean_s("optimizer", "other"), 0.0) / usual
    fixed_s = max(training_s - each_s * usual, 0.0)
    return fixed_s, each_s + max(0.0, view.mean_step_s - training_s) / usual, usual
