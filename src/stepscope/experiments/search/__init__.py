"""A search for efficient networks: proposed, held against a budget, trained, halved, tested once.

budget      what a network may take on an accelerator
space       which networks, and which ways of training them
proposals   one after the other, those that fit
halving     who is trained for longer
carry_out   the search itself, from wherever its record stands

The record is a sweep folder of the kind `search`. Its trials are runs judged on held-out samples;
only the last ones, of designs that were chosen by then, open the test set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import AnswerIsNo, Interrupted, RequestError
from stepscope.experiments.carry_out import Summarize
from stepscope.experiments.runners import Runner
from stepscope.experiments.runners.here import HERE
from stepscope.experiments.search.budget import Budget
from stepscope.experiments.search.carry_out import EstimateModel, Onlooker, Search
from stepscope.experiments.search.halving import check_rungs, rung_epochs
from stepscope.experiments.search.space import check_space, space_of
from stepscope.experiments.subjects import OwnTraining
from stepscope.experiments.sweep import working_in
from stepscope.experiments.sweep.execute import Bench
from stepscope.records import schema
from stepscope.records.sweep import Sweep, SweepFolder, create_sweep, load_sweep, load_sweep_of
from stepscope.spec import RunSpec
from stepscope.spec.load import with_changes
from stepscope.train.reading import reading_of

if TYPE_CHECKING:
    from stepscope.data.catalogue import DataSet

KIND = "search"
_ONE_HELD_OUT_OF = 5  # samples, where nobody says how many


class SearchInterrupted(Interrupted):
    """Somebody asked a search to stop; what is done is in its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"interrupted; go on with: stepscope search --resume {folder}")
        self.folder = folder


class NothingFound(AnswerIsNo):
    """A search came to no network; what it tried is in its folder."""

    def __init__(self, why: str, folder: Path) -> None:
        super().__init__(why)
        self.folder = folder


@dataclass(frozen=True)
class Request:
    """What is searched; `asked` are the settings that somebody named, and they stay as they are.

    `on` says for the record where designs are trained; None is this machine.
    """

    asked: Mapping[str, Any]
    budget: Budget
    designs: int
    finals: int
    spatial: str
    accelerator: str
    on: Mapping[str, Any] | None = None


def start(
    request: Request,
    estimate: EstimateModel,
    onlooker: Onlooker,
    summarize: Summarize,
    runner: Runner = HERE,
) -> Sweep:
    """Make the folder of a search, and everything in it.

    Raises:
        RequestError: the search could only fail; then nothing was begun.
        NothingFound: no network keeps the budget, or none could be trained or tested.
        SearchInterrupted: somebody asked it to stop.
    """
    asked = _with_defaults(request.asked)
    subject = OwnTraining(asked, quick=True)
    spec = subject.spec({})
    if spec.optimizer != "sgd":
        raise RequestError(f"optimizer: a search tries ways of sgd, found {spec.optimizer}.")
    dataset = _images(spec)
    rungs = rung_epochs(request.designs, spec.epochs)
    check_rungs(rungs, request.designs, request.finals, spec.max_steps)
    info = {
        "kind": KIND,
        "directory": str(Path.cwd()),
        **subject.to_json(),
        "named": sorted(request.asked),
        "seed": spec.seed,
        "repeats": 1,
        "settings": [],
        "over": None,
        "time_limit_s": None,
        "budget": dict(request.budget.limits),
        "spatial": request.spatial,
        "accelerator": request.accelerator,
        "input": list(dataset.shape),
        "classes": dataset.classes,
        "training_samples": dataset.count("train", spec.samples) - spec.validation,
        "designs": request.designs,
        "finals": request.finals,
        "rungs": rungs,
        "proposals": [],
        "on": None if request.on is None else dict(request.on),
        "at_once": runner.at_once,
    }
    space = space_of(info, spec)
    runner.check(subject, [space.least])
    check_space(space, request.designs)
    made = create_sweep(Path(spec.out), spec.name or f"{KIND}-{spec.data}", info, [])
    return _carry_out(made, estimate, onlooker, summarize, runner)


def resume(
    path: Path,
    estimate: EstimateModel,
    onlooker: Onlooker,
    summarize: Summarize,
    runner: Runner = HERE,
) -> Sweep:
    """Do what is missing of a search; a completed one is left as it is."""
    recorded = load_sweep_of(path, KIND)
    if recorded.info.get("status") == schema.COMPLETED:
        return recorded
    with working_in(recorded.info.get("directory")):
        return _carry_out(SweepFolder(recorded.path), estimate, onlooker, summarize, runner)


def _carry_out(
    folder: SweepFolder,
    estimate: EstimateModel,
    onlooker: Onlooker,
    summarize: Summarize,
    runner: Runner,
) -> Sweep:
    info = folder.read_info()
    subject = OwnTraining(info["spec"], quick=True)
    bench = Bench(folder, subject, onlooker, summarize, runner=runner)
    try:
        with bench.open():
            Search(bench, onlooker, estimate).carry_out()
    except Interrupted:
        raise SearchInterrupted(folder.path) from None
    except AnswerIsNo as answer:
        raise NothingFound(str(answer), folder.path) from None
    return load_sweep(folder.path)


def _with_defaults(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Hold samples out, and train on images as they are, where nothing else was said.

    Raises:
        RequestError: there would be nothing to judge by.
    """
    chosen = {"augment": "none", **asked}
    spec = with_changes(chosen, {})
    if not spec.evaluate:
        raise RequestError("evaluate: a search judges by evaluations, and there would be none.")
    if "validation" not in asked:
        samples = _images(spec).count("train", spec.samples)
        chosen["validation"] = max(1, samples // _ONE_HELD_OUT_OF)
    elif spec.validation == 0:
        raise RequestError("validation: a search judges on held-out samples, found 0.")
    return chosen


def _images(spec: RunSpec) -> DataSet:
    from stepscope.data import catalogue  # needs numpy, which a reader of runs may not have

    dataset = catalogue.find(spec.data, reading_of(spec))
    if dataset.tokens is not None:
        raise RequestError(
            f"data: a search is for images, and the samples of {spec.data} are texts."
        )
    return dataset
