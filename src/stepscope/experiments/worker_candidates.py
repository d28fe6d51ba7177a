"""Which numbers of workers to try, and how long: known before the first round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stepscope.analyze.sweep_summary import start_up_steps, whole_turns
from stepscope.errors import RequestError
from stepscope.experiments.max_batch_trials import limit_now
from stepscope.experiments.script_loaders import NO_LOADER, batch_bytes, training_loader
from stepscope.experiments.workload import (
    ScriptWorkload,
    TrainingWorkload,
    Workload,
    dataset_of,
    training_samples_of,
)
from stepscope.hardware import host
from stepscope.records.run_reader import Run
from stepscope.records.types import SettingValue, StepFigures, TrialMetrics, WorkerBounds
from stepscope.units import format_count

# --- How long a trial is


_SHARE = 25
_LEAST_STEPS, _MOST_STEPS = 20, 40  # more steps of one run say little more: runs differ by more
_LEAST_EPOCHS = 3  # of a trial of whole epochs; the first is not counted
_LONG_EPOCH = 1000  # steps, if the length of an epoch is unknown


def steps_of_trial(steps_an_epoch: int | None) -> int:
    """Return how many steps of a trial count: a small share of an epoch."""
    return min(_MOST_STEPS, max(_LEAST_STEPS, (steps_an_epoch or _LONG_EPOCH) // _SHARE))


# --- Which numbers of workers are worth a trial on this machine


_ALWAYS = 4  # workers that are tried on a machine with fewer CPUs too
# Workers that mostly wait for a disk or a server need no core each.
_MOST_WAITING_A_CPU = 8
_LITTLE_CPU = 0.5  # of a worker's time
_TO_SPARE = 1.2  # times the workers that keep up on average


@dataclass(frozen=True)
class Candidate:
    """A number of workers; `threads` only where fewer than torch chose are tried."""

    workers: int
    threads: int | None = None

    @property
    def values(self) -> dict[str, SettingValue]:
        """Its settings."""
        threads = {} if self.threads is None else {"threads": self.threads}
        return {"workers": self.workers, **threads}

    @property
    def size(self) -> tuple[int, int]:
        """The order of candidates: by workers, torch's own number of threads first."""
        return self.workers, 0 if self.threads is None else 1

    def __str__(self) -> str:
        counted = format_count(self.workers, "worker")
        if self.threads is None:
            return counted
        return f"{counted} with {format_count(self.threads, 'thread')}"


@dataclass(frozen=True)
class Bounds:
    """The resources for workers; an unknown one, None, does not limit them.

    `limit_bytes` is for the whole training, `alone_bytes` is its memory without workers. `waiting`
    is the number of workers that keep up, where they mostly wait and need no CPU each.
    """

    cpus: int
    limit_bytes: int | None = None
    alone_bytes: int | None = None
    worker_bytes: int | None = None
    shm_free_bytes: int | None = None
    batch_bytes: int | None = None
    prefetch: int = 2
    by_steps: int | None = None
    waiting: int = 0

    @property
    def by_memory(self) -> int | None:
        """How many workers fit into the memory that the training leaves."""
        if self.limit_bytes is None or self.alone_bytes is None or not self.worker_bytes:
            return None
        return max(0, self.limit_bytes - self.alone_bytes) // self.worker_bytes

    @property
    def by_shared_memory(self) -> int | None:
        """How many workers' finished batches fit into /dev/shm, with the one in use."""
        if self.shm_free_bytes is None or not self.batch_bytes:
            return None
        return max(0, self.shm_free_bytes // self.batch_bytes - 1) // self.prefetch

    @property
    def by_cpus(self) -> int:
        """How many workers the CPUs could keep busy, or more that mostly wait."""
        most = self.cpus * _MOST_WAITING_A_CPU
        return max(_ALWAYS, self.cpus, min(self.waiting, most))

    @property
    def most(self) -> int:
        """The largest number that is worth a trial."""
        limits = (self.by_cpus, self.by_memory, self.by_shared_memory, self.by_steps)
        return min(limit for limit in limits if limit is not None)

    @property
    def what_limits(self) -> str | None:
        """What keeps numbers from a trial which the CPUs would allow, or None."""
        reasons = {
            self.by_memory: "memory",
            self.by_shared_memory: "/dev/shm, which holds the batches of workers",
            self.by_steps: "the steps of a trial",
        }
        return reasons.get(self.most) if self.most < self.by_cpus else None

    def with_seen(self, workers: int, seen: TrialMetrics) -> Bounds:
        """Return the bounds with what a trial showed of its workers."""
        worker_bytes = max(self.worker_bytes or 0, seen.get("worker_bytes") or 0) or None
        alone_bytes, peak_bytes = self.alone_bytes, seen.get("peak_memory_bytes")
        if peak_bytes and (worker_bytes or not workers):
            alone_bytes = max(0, peak_bytes - workers * (worker_bytes or 0))
        return replace(
            self,
            worker_bytes=worker_bytes,
            alone_bytes=alone_bytes,
            waiting=max(self.waiting, _workers_that_keep_up(seen["steady"])),
        )

    def to_json(self) -> WorkerBounds:
        """Return the limits."""
        return {
            "cpus": self.cpus,
            "by_memory": self.by_memory,
            "by_shared_memory": self.by_shared_memory,
            "by_steps": self.by_steps,
        }


def _workers_that_keep_up(seen: StepFigures) -> int:
    """Return how many workers that mostly wait make as many batches as the training uses, or 0."""
    load_s, load_cpu_s = seen["load_s"], seen["load_cpu_s"]
    step_s, data_s = seen["step_s"], seen["data_s"]
    if not load_s or load_cpu_s is None or load_cpu_s > _LITTLE_CPU * load_s:
        return 0
    if step_s is None or data_s is None:
        return 0
    needed = math.ceil(_TO_SPARE * load_s / max(step_s - data_s, 1e-3))
    return _power_of_two(needed)


def _power_of_two(least: int) -> int:
    """Return the smallest power of two that is not less."""
    return 1 << max(0, least - 1).bit_length()


def candidates(bounds: Bounds, current: int) -> list[Candidate]:
    """Return 0, 1, 2, 4, … up to the bound, the bound itself, and the current number."""
    most = bounds.most
    powers = (1 << exponent for exponent in range(most.bit_length()))
    return [Candidate(number) for number in sorted({0, most, current, *powers})]


# --- A training or a script, before the trials


LOOK_STEPS = 6  # of a script, to learn what its loader is like


@dataclass(frozen=True)
class Setup:
    """A training, its current workers, and their bounds.

    `max_steps` is the user's --max-steps; `reads_files` is None if it is unknown.
    """

    workload: Workload
    current: Candidate
    steps_an_epoch: int | None
    batches_a_step: int
    bounds: Bounds
    max_steps: int | None = None
    reads_files: bool | None = None
    shares_cpus: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def takes_epochs(self) -> bool:
        """Whether an epoch is so short that trials take several, and start their workers again."""
        needed = self._steps(Candidate(max(_ALWAYS, self.current.workers)))
        return self.steps_an_epoch is not None and self.steps_an_epoch < needed

    def rate(self, figures: TrialMetrics) -> float | None:
        """Return the samples per second of a trial: of its epochs, or of its steady steps."""
        return figures["samples_per_s" if self.takes_epochs else "steady_samples_per_s"]

    def values(self, candidate: Candidate) -> dict[str, SettingValue]:
        """Return the settings of a trial: whole epochs, or the start and the steps that count."""
        is_script, epochs = isinstance(self.workload, ScriptWorkload), 1
        steps = self._steps(candidate)
        if self.steps_an_epoch is not None and self.takes_epochs:
            counted = -(-steps_of_trial(self.steps_an_epoch) // self.steps_an_epoch)
            epochs = max(_LEAST_EPOCHS, 1 + counted)
            steps = epochs * self.steps_an_epoch
        values = {**candidate.values, "max_steps": min(steps, self.max_steps or steps)}
        if is_script and candidate.workers:
            # Named, so that the trial's record shows which batches only filled the buffers.
            values["prefetch"] = self.bounds.prefetch
        return values if is_script or epochs == 1 else {**values, "epochs": epochs}

    def bounded_by_steps(self) -> Setup:
        """Return it without numbers whose workers take fewer than two turns in a trial."""
        of_epoch = None if self.takes_epochs else self.steps_an_epoch
        limits = [limit for limit in (of_epoch, self.max_steps) if limit is not None]
        a_worker = self.bounds.prefetch + 2
        most = (min(limits) - start_up_steps({})) // a_worker if limits else None
        return replace(self, bounds=replace(self.bounds, by_steps=most and max(0, most)))

    def _steps(self, candidate: Candidate) -> int:
        prefetch = self.bounds.prefetch
        named = {"prefetch": prefetch, "accumulate": self.batches_a_step, **candidate.values}
        counted = whole_turns(steps_of_trial(self.steps_an_epoch), candidate.workers)
        return start_up_steps(named) + counted


def setup_of_training(workload: TrainingWorkload) -> Setup:
    """Read the setup from a spec; raise RequestError if there is nothing to load."""
    spec = workload.spec({})
    if spec.source == "synthetic":
        raise RequestError("source: synthetic batches need no workers. Use memory or local.")
    steps = -(-training_samples_of(spec) // (spec.batch_size * spec.accumulate))
    bounds = Bounds(
        cpus=host.usable_cpus() or 1,
        limit_bytes=limit_now(spec.memory_limit).bytes,
        shm_free_bytes=host.shared_memory_free_bytes(),
        batch_bytes=spec.batch_size * dataset_of(spec).input_bytes,
        prefetch=spec.prefetch,
    )
    quick = {**workload.asked, "evaluate": False, "epochs": 1}
    setup = Setup(
        replace(workload, asked=quick, quick=True),
        Candidate(spec.workers),
        steps,
        spec.accumulate,
        bounds,
        max_steps=spec.max_steps,
        reads_files=spec.source != "memory",
        shares_cpus=spec.threads is None and spec.device in ("auto", "cpu"),
    )
    return setup.bounded_by_steps()


def setup_of_script(workload: ScriptWorkload, looked: Run) -> Setup:
    """Read the setup from a short run of a script; raise RequestError if it has no loader."""
    loader = training_loader(looked)
    if loader is None:
        raise RequestError(f"{NO_LOADER}.")
    found, samples = loader["found"], loader["samples"]
    batch, steps = found["batch_size"], None
    if batch and samples:
        steps = max(1, -(-samples // batch))
    bounds = Bounds(
        cpus=host.usable_cpus() or 1,
        limit_bytes=limit_now(None).bytes,
        alone_bytes=looked.summary.get("peak_memory_bytes"),
        shm_free_bytes=host.shared_memory_free_bytes(),
        batch_bytes=batch_bytes(looked),
        prefetch=found["prefetch_factor"] or 2,
    )
    setup = Setup(
        replace(workload, request=replace(workload.request, max_steps=None)),
        Candidate(found["num_workers"]),
        steps,
        1,
        bounds,
        max_steps=workload.request.max_steps,
    )
    return setup.bounded_by_steps()
