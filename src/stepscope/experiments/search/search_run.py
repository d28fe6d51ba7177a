"""A search for efficient networks: proposed within a budget, trained, halved, tested once.

The record is a sweep folder of the kind `search`. Its trials are judged on held-out samples; only
the last ones, of the chosen designs, use the test set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stepscope.analyze.search_result import merit
from stepscope.errors import AnswerIsNo, RequestError
from stepscope.experiments import sweep_run
from stepscope.experiments.runners.runner import HERE, Runner
from stepscope.experiments.search.proposals import Asked, Figures, SearchBudget, propose
from stepscope.experiments.search.search_space import check_space, space_of
from stepscope.experiments.sweep_run import SweepListener, SweepRequest, TrialBench
from stepscope.experiments.workload import TrainingWorkload, dataset_of
from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep, Trial, load_sweep, load_sweep_of
from stepscope.records.types import (
    DesignProposal,
    NetworkEstimate,
    RunnerPlace,
    SearchPlan,
    SettingValue,
    SweepRecord,
)
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import with_changes

if TYPE_CHECKING:
    from stepscope.data.dataset import DataSet


# Model, shape and classes as flags would give them, spatial factors, accelerator.
EstimateModel = Callable[[str, str | None, str | None, str, str], NetworkEstimate]
Judged = tuple[DesignProposal, float | None]  # and its accuracy, if known


# --- Successive halving: many designs are trained briefly, the better half longer, and so on. Every
# rung trains from the beginning: a learning-rate schedule is made for its number of epochs.


def rung_epochs(designs: int, epochs: int) -> list[int]:
    """Return the epochs of each rung: those asked for in the last, half as many before."""
    halvings = designs.bit_length() - 1
    return sorted({max(1, epochs >> halved) for halved in range(halvings + 1)})


def check_rungs(rungs: Sequence[int], designs: int, finals: int, max_steps: int | None) -> None:
    """Refuse to test more designs than are left, and rungs that all train equally long."""
    left = -(-designs // 2 ** (len(rungs) - 1))
    if not 1 <= finals <= left:
        raise RequestError(
            f"finals: wanted 1 to {left}, as many of the {designs} trials as reach the last rung, "
            f"found {finals}."
        )
    if max_steps is not None and len(rungs) > 1:
        raise RequestError(
            f"max_steps: {max_steps} would end the trainings of {rungs[0]} and of {rungs[-1]} "
            "epochs alike. Leave it out, or search with --epochs 1."
        )


# --- The search, written as if it were never stopped: what is recorded is not repeated


class SearchListener(SweepListener, Protocol):
    """Is notified of a search's progress."""

    def proposed(
        self, number: int, values: Mapping[str, SettingValue], figures: Figures, fits: bool
    ) -> None:
        """Receive a design and its estimate."""


@dataclass(frozen=True)
class DesignSearch:
    """A search: its trials are made on the bench, its record has what is done."""

    bench: TrialBench
    listener: SearchListener
    estimate: EstimateModel

    def run(self) -> None:
        """Propose, train and halve designs, and test those that are left."""
        info = self.bench.folder.read_info()
        first, *longer = info["rungs"]
        judged = self._first_rung(info, first)
        for rung, epochs in enumerate(longer, 2):
            better = self._best_first(judged)[: -(-len(judged) // 2)]
            again = [proposal for proposal, accuracy in judged if (proposal, accuracy) in better]
            judged = self._train(again, epochs, rung)
        finals = [self._test(each, info) for each in self._best_first(judged)[: info["finals"]]]
        if all(trial.status != schema.COMPLETED for trial in finals):
            raise AnswerIsNo(f"no chosen design could be tested: {finals[0].reason}")

    def _first_rung(self, info: SweepRecord, epochs: int) -> list[Judged]:
        """Train designs as they are proposed: their accuracies guide the next proposals.

        As many are proposed at once as trials could run at once when the search started.
        """
        space = space_of(info, self._training().spec({}))
        asked = Asked(SearchBudget(info["budget"]), space, info["seed"])
        judged: list[Judged] = []
        designs = propose(asked, info["proposals"], self._record, self._figures)
        while len(judged) < info["design_count"]:
            at_once = min(info.get("at_once", 1), info["design_count"] - len(judged))
            some = list(islice(designs, at_once))
            come_to = self._train([proposal for proposal, _ in some], epochs, 1)
            for (_, tell), (_, accuracy) in zip(some, come_to, strict=True):
                tell(accuracy)
            judged += come_to
        return judged

    def _record(self, proposal: DesignProposal) -> None:
        proposals = [*self.bench.folder.read_info()["proposals"], proposal]
        self.bench.folder.update_info(proposals=proposals)
        values, figures, fits = proposal["values"], proposal["figures"], proposal["fits"]
        self.listener.proposed(len(proposals), values, figures, fits)

    def _figures(self, model: str) -> dict[str, float]:
        info = self.bench.folder.read_info()
        shape, classes = ",".join(map(str, info["input"])), str(info["classes"])
        found = self.estimate(model, shape, classes, info["spatial"], info["accelerator"])
        return {
            "energy_mj": float(found["energy_mj"]),
            "cycles": float(found["cycles"]),
            "peak_activation_bytes": float(found["peak_activation_bytes"]),
        }

    def _train(self, proposals: list[DesignProposal], epochs: int, rung: int) -> list[Judged]:
        """Train designs for some epochs, unless they are recorded, and judge them."""
        settings = [{**proposal["values"], "epochs": epochs} for proposal in proposals]
        judged: list[Judged] = []
        for proposal, trial in zip(proposals, self.bench.have(settings, rung), strict=True):
            done = trial.status == schema.COMPLETED
            accuracy = trial.metrics.get("validation_accuracy") if done else None
            judged.append((proposal, accuracy))
        return judged

    def _test(self, chosen: Judged, info: SweepRecord) -> Trial:
        """Train a chosen design on all samples, and use the test set once, at the end."""
        proposal, accuracy = chosen
        choice = {
            "judged_on": "validation",
            "validation": (info["spec"] or {})["validation"],
            "validation_accuracy": accuracy,
            "designs": info["design_count"],
            "search": info["id"],
        }
        last = info["rungs"][-1]
        final = {**proposal["values"], "epochs": last, "validation": 0, "test_at": "end"}
        bench = replace(self.bench, workload=replace(self._training(), choice=choice))
        [trial] = bench.have([final], len(info["rungs"]) + 1)
        return trial

    def _training(self) -> TrainingWorkload:
        workload = self.bench.workload
        assert isinstance(workload, TrainingWorkload), "a search trains networks of ours"
        return workload

    def _best_first(self, judged: list[Judged]) -> list[Judged]:
        """Order the designs with a result, of equals the first proposed; refuse none."""
        known = [each for each in judged if each[1] is not None]
        if not known:
            trials = [each for each in load_sweep(self.bench.folder.path).trials if each.reason]
            why = trials[-1].reason if trials else "none was completed"
            raise AnswerIsNo(f"no design could be trained: {why}")
        return sorted(known, key=lambda each: merit(each[1], each[0]["figures"]["energy_mj"]))


KIND = "search"
_ONE_HELD_OUT_OF = 5  # samples


class NothingFound(AnswerIsNo):
    """A search found no network; its trials are in its folder."""

    def __init__(self, why: str, folder: Path) -> None:
        super().__init__(why)
        self.folder = folder


@dataclass(frozen=True)
class SearchRequest:
    """What to search for; `asked` are the user's settings, which stay fixed.

    `on` records where designs are trained; None is this machine.
    """

    asked: Mapping[str, SettingValue]
    budget: SearchBudget
    designs: int
    finals: int
    spatial: str
    accelerator: str
    on: RunnerPlace | None = None


def start(
    request: SearchRequest,
    estimate: EstimateModel,
    listener: SearchListener,
    runner: Runner = HERE,
) -> Sweep:
    """Make the folder of a search and everything in it; refuse one that could only fail.

    Raise NothingFound if no network meets the budget, or none could be trained or tested.
    """
    asked = _with_defaults(request.asked)
    workload = TrainingWorkload(asked, quick=True)
    spec = workload.spec({})
    if spec.optimizer != "sgd":
        raise RequestError(f"optimizer: a search needs sgd, found {spec.optimizer}.")
    dataset = _images(spec)
    rungs = rung_epochs(request.designs, spec.epochs)
    check_rungs(rungs, request.designs, request.finals, spec.max_steps)
    plan: SearchPlan = {
        "named": sorted(request.asked),
        "budget": dict(request.budget.limits),
        "spatial": request.spatial,
        "accelerator": request.accelerator,
        "input": list(dataset.shape),
        "classes": dataset.classes,
        "training_samples": dataset.count("train", spec.samples) - spec.validation,
        "design_count": request.designs,
        "finals": request.finals,
        "rungs": rungs,
        "proposals": [],
        "at_once": runner.at_once,
    }
    space = space_of(plan, spec)
    runner.check(workload, [space.least])
    check_space(space, request.designs)
    name = spec.name or f"{KIND}-{spec.data}"
    sweep = SweepRequest([], 1, Path(spec.out), name, KIND, seed=spec.seed, on=request.on)
    bench = TrialBench(sweep_run.create(workload, sweep, plan), workload, listener, None, runner)
    with _naming_folder(bench.folder.path):
        return sweep_run.run_trials(
            bench, lambda bench: DesignSearch(bench, listener, estimate).run()
        )


def resume(
    path: Path,
    estimate: EstimateModel,
    listener: SearchListener,
    runner: Runner = HERE,
) -> Sweep:
    """Do the missing work of a search; a completed one is left as it is."""
    recorded = load_sweep_of(path, KIND)
    with _naming_folder(recorded.path):
        return sweep_run.go_on(
            recorded,
            listener,
            runner,
            work=lambda bench: DesignSearch(bench, listener, estimate).run(),
            workload=TrainingWorkload(recorded.info["spec"] or {}, quick=True),
        )


@contextmanager
def _naming_folder(folder: Path) -> Iterator[None]:
    try:
        yield
    except AnswerIsNo as answer:
        raise NothingFound(str(answer), folder) from None


def _with_defaults(asked: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """Hold out samples and use no augmentation, unless the user chose otherwise."""
    chosen: dict[str, SettingValue] = {"augment": "none", **asked}
    spec = with_changes(chosen, {})
    if not spec.evaluate:
        raise RequestError("evaluate: a search needs evaluations, and these settings have none.")
    if "validation" not in asked:
        samples = _images(spec).count("train", spec.samples)
        chosen["validation"] = max(1, samples // _ONE_HELD_OUT_OF)
    elif spec.validation == 0:
        raise RequestError("validation: a search needs 1 held-out sample or more, found 0.")
    return chosen


def _images(spec: RunSpec) -> DataSet:
    dataset = dataset_of(spec)
    if dataset.tokens is not None:
        raise RequestError(f"data: a search needs images, and {spec.data} has texts.")
    return dataset
