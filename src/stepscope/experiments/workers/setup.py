"""What is known of a training before the first trial of its workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stepscope.analyze.trial_metrics import start_up_steps, whole_turns
from stepscope.errors import RequestError
from stepscope.experiments.fit_answer import limit_now
from stepscope.experiments.script_loaders import NO_LOADER, batch_bytes, training_loader
from stepscope.experiments.subjects import OwnScript, OwnTraining, Subject
from stepscope.experiments.workers.budget import Budget, budget_of
from stepscope.experiments.workers.candidates import Bounds, Candidate
from stepscope.hardware import host
from stepscope.records.reader import Run
from stepscope.train.reading import reading_of

LOOK_STEPS = 6  # of a script, to learn what its loader is like
_LONG_EPOCH = 1000  # steps, where nobody knows how many an epoch has


@dataclass(frozen=True)
class Setup:
    """A training, its workers as they are set now, and what bounds them.

    `most_steps` ends every trial, where somebody said so; `reads_files` is None where nobody knows.
    """

    subject: Subject
    current: Candidate
    steps_an_epoch: int | None
    batches_a_step: int
    prefetch: int
    bounds: Bounds
    budget: Budget
    most_steps: int | None = None
    reads_files: bool | None = None
    shares_cpus: bool = False
    warnings: tuple[str, ...] = ()

    def values(self, candidate: Candidate, steps: int) -> dict[str, Any]:
        """Return the settings of a short trial: enough steps to get going, then the window."""
        named = {
            "workers": candidate.workers,
            "prefetch": self.prefetch,
            "accumulate": self.batches_a_step,
        }
        in_all = start_up_steps(named) + whole_turns(steps, candidate.workers)
        limits = [limit for limit in (self.steps_an_epoch, self.most_steps) if limit is not None]
        values = {**candidate.values, "max_steps": min([in_all, *limits])}
        if isinstance(self.subject, OwnScript) and candidate.workers:
            # Named, so that the trial's record tells which batches only filled the buffers.
            values["prefetch"] = self.prefetch
        return values


def setup_of_training(subject: OwnTraining) -> Setup:
    """Learn from the settings of a training of ours.

    Raises:
        RequestError: there is nothing for workers to load.
    """
    from stepscope.data import catalogue  # needs numpy, which a reader of runs may not have

    spec = subject.spec({})
    if spec.source == "synthetic":
        raise RequestError("source: synthetic batches are not loaded, so there are no workers.")
    dataset = catalogue.find(spec.data, reading_of(spec))
    samples = dataset.count("train", spec.samples) - spec.validation
    steps = -(-samples // (spec.batch_size * spec.accumulate))
    budget = budget_of(steps)
    bounds = Bounds(
        cpus=host.usable_cpus() or 1,
        limit_bytes=limit_now(spec.memory_limit).bytes,
        shm_free_bytes=host.shared_memory_free_bytes(),
        batch_bytes=spec.batch_size * dataset.input_bytes,
        prefetch=spec.prefetch,
        by_epoch=budget.most_workers,
    )
    quick = {**subject.asked, "evaluate": False, "epochs": 1}
    return Setup(
        replace(subject, asked=quick, quick=True),
        Candidate(spec.workers),
        steps,
        spec.accumulate,
        spec.prefetch,
        bounds,
        budget,
        most_steps=spec.max_steps,
        reads_files=spec.source != "memory",
        shares_cpus=spec.threads is None and spec.device in ("auto", "cpu"),
    )


def setup_of_script(subject: OwnScript, looked: Run) -> Setup:
    """Learn from a first look at somebody's script, its own settings unchanged.

    Raises:
        RequestError: it makes no loader that workers could be given to.
    """
    loader = training_loader(looked)
    if loader is None:
        raise RequestError(f"{NO_LOADER}.")
    found, samples = loader["found"], loader["samples"]
    batch, steps = found["batch_size"], None
    if batch and samples:
        steps = max(1, -(-samples // batch))
    budget = budget_of(steps or _LONG_EPOCH)
    bounds = Bounds(
        cpus=host.usable_cpus() or 1,
        limit_bytes=limit_now(None).bytes,
        alone_bytes=looked.summary.get("peak_memory_bytes"),
        shm_free_bytes=host.shared_memory_free_bytes(),
        batch_bytes=batch_bytes(looked),
        prefetch=found["prefetch_factor"] or 2,
        by_epoch=budget.most_workers,
    )
    return Setup(
        replace(subject, request=replace(subject.request, max_steps=None)),
        Candidate(found["num_workers"]),
        steps,
        1,
        bounds.prefetch,
        bounds,
        budget,
        most_steps=subject.request.max_steps,
    )
