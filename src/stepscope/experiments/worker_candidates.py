"""Which numbers of workers to try, and how long: known before the first trial."""

from __future__ import annotations

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
from stepscope.records.types import SettingValue, WorkerBounds
from stepscope.units import format_count

# --- How much is measured: a tenth of an epoch's steps to choose, as many to verify


_SHARE = 10
_CHOOSING_ROUNDS = (5, 4, 3, 2)  # the most whose trials still have enough steps
_LEAST_ROUNDS = 2
_LEAST_VERIFYING_ROUNDS = 3
_ENOUGH_STEPS = 6
_LEAST_STEPS = 2
_MOST_STEPS = 40  # more steps of one run say little more: runs differ by more than their steps


@dataclass(frozen=True)
class TrialBudget:
    """The steps of a trial, the rounds, and the most steps of all rounds."""

    steps: int
    rounds: int
    most: int

    @classmethod
    def of(cls, most: int, rounds: int) -> TrialBudget:
        """Divide steps among rounds, within the least and the most of a trial."""
        return cls(min(_MOST_STEPS, max(_LEAST_STEPS, most // rounds)), rounds, most)

    def rounds_with(self, workers: int) -> int:
        """Return the rounds for a number of workers, whose trials are whole turns of them."""
        window = whole_turns(self.steps, workers)
        return max(_LEAST_ROUNDS, min(self.rounds, self.most // window))


def budgets_of(steps_an_epoch: int) -> tuple[TrialBudget, TrialBudget]:
    """Return the budgets to choose and to verify by: a tenth of an epoch each."""
    most = steps_an_epoch // _SHARE
    rounds = next((n for n in _CHOOSING_ROUNDS if most // n >= _ENOUGH_STEPS), _LEAST_ROUNDS)
    verifying = TrialBudget.of(most, max(rounds, _LEAST_VERIFYING_ROUNDS))
    return TrialBudget.of(most, rounds), verifying


def most_workers(budget: TrialBudget) -> int:
    """Return the largest number of workers whose turns fit into the budget."""
    return max(1, budget.most // _LEAST_ROUNDS)


# --- Which numbers of workers are worth a trial on this machine


# Workers that mostly wait for a disk or a server need no core each.
_MOST_WAITING_A_CPU = 8
_LITTLE_CPU = 0.5  # of a worker's time


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

    `limit_bytes` is for the whole training, `alone_bytes` is its memory without workers.
    """

    cpus: int
    limit_bytes: int | None = None
    alone_bytes: int | None = None
    worker_bytes: int | None = None
    shm_free_bytes: int | None = None
    batch_bytes: int | None = None
    prefetch: int = 2
    by_epoch: int | None = None

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

    def most(self, *, mostly_waiting: bool = False) -> int:
        """Return the largest number that is worth a trial."""
        by_cpus = self.cpus * (_MOST_WAITING_A_CPU if mostly_waiting else 1)
        limits = (by_cpus, self.by_memory, self.by_shared_memory, self.by_epoch)
        return min(limit for limit in limits if limit is not None)

    def to_json(self) -> WorkerBounds:
        """Return the limits."""
        return {
            "cpus": self.cpus,
            "by_memory": self.by_memory,
            "by_shared_memory": self.by_shared_memory,
            "by_epoch": self.by_epoch,
        }


def first_candidates(bounds: Bounds, current: int) -> list[Candidate]:
    """Return 0, 1, 2, 4, … up to the bound, the bound itself, and the current number."""
    most = bounds.most()
    numbers = {0, most, current}
    power = 1
    while power < most:
        numbers.add(power)
        power *= 2
    return [Candidate(number) for number in sorted(numbers)]


def next_larger(
    largest: int, bounds: Bounds, load_s: float | None, load_cpu_s: float | None
) -> Candidate | None:
    """Return a larger number to try if workers mostly wait rather than compute."""
    if not load_s or load_cpu_s is None or load_cpu_s > _LITTLE_CPU * load_s:
        return None
    most = bounds.most(mostly_waiting=True)
    wanted = max(1, 2 * largest)
    return Candidate(min(wanted, most)) if most > largest else None


LOOK_STEPS = 6  # of a script, to learn what its loader is like
_LONG_EPOCH = 1000  # steps, if the length of an epoch is unknown


@dataclass(frozen=True)
class Setup:
    """A training, its current workers, and their bounds.

    `most_steps` is the user's --max-steps; `reads_files` is None if it is unknown.
    """

    workload: Workload
    current: Candidate
    steps_an_epoch: int | None
    batches_a_step: int
    bounds: Bounds
    choosing: TrialBudget
    verifying: TrialBudget
    most_steps: int | None = None
    reads_files: bool | None = None
    shares_cpus: bool = False
    warnings: tuple[str, ...] = ()

    def values(self, candidate: Candidate, steps: int) -> dict[str, SettingValue]:
        """Return the settings of a short trial: the start-up steps, then the measured ones."""
        prefetch = self.bounds.prefetch
        named = {"prefetch": prefetch, "accumulate": self.batches_a_step, **candidate.values}
        in_all = start_up_steps(named) + whole_turns(steps, candidate.workers)
        limits = [limit for limit in (self.steps_an_epoch, self.most_steps) if limit is not None]
        values = {**candidate.values, "max_steps": min([in_all, *limits])}
        if isinstance(self.workload, ScriptWorkload) and candidate.workers:
            # Named, so that the trial's record shows which batches only filled the buffers.
            values["prefetch"] = prefetch
        return values


def setup_of_training(workload: TrainingWorkload) -> Setup:
    """Read the setup from a spec; raise RequestError if there is nothing to load."""
    spec = workload.spec({})
    if spec.source == "synthetic":
        raise RequestError("source: synthetic batches need no workers. Use memory or local.")
    steps = -(-training_samples_of(spec) // (spec.batch_size * spec.accumulate))
    choosing, verifying = budgets_of(steps)
    bounds = Bounds(
        cpus=host.usable_cpus() or 1,
        limit_bytes=limit_now(spec.memory_limit).bytes,
        shm_free_bytes=host.shared_memory_free_bytes(),
        batch_bytes=spec.batch_size * dataset_of(spec).input_bytes,
        prefetch=spec.prefetch,
        by_epoch=most_workers(choosing),
    )
    quick = {**workload.asked, "evaluate": False, "epochs": 1}
    return Setup(
        replace(workload, asked=quick, quick=True),
        Candidate(spec.workers),
        steps,
        spec.accumulate,
        bounds,
        choosing,
        verifying,
        most_steps=spec.max_steps,
        reads_files=spec.source != "memory",
        shares_cpus=spec.threads is None and spec.device in ("auto", "cpu"),
    )


def setup_of_script(workload: ScriptWorkload, looked: Run) -> Setup:
    """Read the setup from a short run of a script; raise RequestError if it has no loader."""
    loader = training_loader(looked)
    if loader is None:
        raise RequestError(f"{NO_LOADER}.")
    found, samples = loader["found"], loader["samples"]
    batch, steps = found["batch_size"], None
    if batch and samples:
        steps = max(1, -(-samples // batch))
    choosing, verifying = budgets_of(steps or _LONG_EPOCH)
    bounds = Bounds(
        cpus=host.usable_cpus() or 1,
        limit_bytes=limit_now(None).bytes,
        alone_bytes=looked.summary.get("peak_memory_bytes"),
        shm_free_bytes=host.shared_memory_free_bytes(),
        batch_bytes=batch_bytes(looked),
        prefetch=found["prefetch_factor"] or 2,
        by_epoch=most_workers(choosing),
    )
    return Setup(
        replace(workload, request=replace(workload.request, max_steps=None)),
        Candidate(found["num_workers"]),
        steps,
        1,
        bounds,
        choosing,
        verifying,
        most_steps=workload.request.max_steps,
    )
