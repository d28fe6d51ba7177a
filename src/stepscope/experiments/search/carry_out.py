"""The search itself, written as if it were never stopped: what is recorded is not done again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Protocol

from stepscope.analyze.search_result import merit
from stepscope.errors import AnswerIsNo
from stepscope.experiments.search.budget import FIGURES, Budget
from stepscope.experiments.search.halving import better_half
from stepscope.experiments.search.proposals import Asked, Figures, Proposal, propose
from stepscope.experiments.search.space import space_of
from stepscope.experiments.subjects import OwnTraining
from stepscope.experiments.sweep.execute import Bench
from stepscope.experiments.sweep.execute import Onlooker as SweepOnlooker
from stepscope.records import schema
from stepscope.records.sweep import Trial, load_sweep

# Model, shape and classes as flags would give them, spatial factors, accelerator.
EstimateModel = Callable[[str, str | None, str | None, str, str], Mapping[str, Any]]
Judged = tuple[Proposal, float | None]  # and its accuracy, if it came to one


class Onlooker(SweepOnlooker, Protocol):
    """Somebody who shows how a search goes."""

    def proposed(
        self, number: int, values: Mapping[str, Any], figures: Figures, fits: bool
    ) -> None:
        """Learn of a design and of its estimate."""


@dataclass(frozen=True)
class Search:
    """A search where it stands: its trials are made on the bench, its record says what is done."""

    bench: Bench
    onlooker: Onlooker
    estimate: EstimateModel

    def carry_out(self) -> None:
        """Propose, train, halve, and test those that are left; everything once."""
        info = self.bench.folder.read_info()
        first, *longer = info["rungs"]
        judged = self._first_rung(info, first)
        for rung, epochs in enumerate(longer, 2):
            self._refuse_nothing(judged)
            better = [proposal for proposal, _ in better_half(_best_first(judged))]
            again = [proposal for proposal, _ in judged if proposal in better]
            judged = self._train(again, epochs, rung)
        self._refuse_nothing(judged)
        chosen = [each for each in _best_first(judged) if each[1] is not None]
        _refuse_untested([self._test(each, info) for each in chosen[: info["finals"]]])

    def _first_rung(self, info: Mapping[str, Any], epochs: int) -> list[Judged]:
        """Train designs as they are proposed: what they come to guides the next.

        There are as many at once as trials were made at once when the search began.
        """
        space = space_of(info, self._training().spec({}))
        asked = Asked(Budget(info["budget"]), space, info["seed"])
        recorded = [Proposal(**each) for each in info["proposals"]]
        judged: list[Judged] = []
        designs = propose(asked, recorded, self._record, self._figures)
        while len(judged) < info["designs"]:
            at_once = min(info.get("at_once", 1), info["designs"] - len(judged))
            some = list(islice(designs, at_once))
            come_to = self._train([proposal for proposal, _ in some], epochs, 1)
            for (_, tell), (_, accuracy) in zip(some, come_to, strict=True):
                tell(accuracy)
            judged += come_to
        return judged

    def _record(self, proposal: Proposal) -> None:
        info = self.bench.folder.read_info()
        proposals = [*info["proposals"], asdict(proposal)]
        self.bench.folder.update_info(proposals=proposals)
        self.onlooker.proposed(len(proposals), proposal.values, proposal.figures, proposal.fits)

    def _figures(self, model: str) -> dict[str, float]:
        info = self.bench.folder.read_info()
        shape, classes = ",".join(map(str, info["input"])), str(info["classes"])
        found = self.estimate(model, shape, classes, info["spatial"], info["accelerator"])
        return {name: float(found[name]) for name in FIGURES}

    def _train(self, proposals: list[Proposal], epochs: int, rung: int) -> list[Judged]:
        """Train designs for so many epochs, unless the record has it done, and judge them."""
        settings = [{**proposal.values, "epochs": epochs} for proposal in proposals]
        trials = self.bench.have(settings, rung)
        return list(zip(proposals, map(_accuracy, trials), strict=True))

    def _test(self, chosen: Judged, info: Mapping[str, Any]) -> Trial:
        """Train a chosen design on all samples, and open the test set once, at the end."""
        proposal, accuracy = chosen
        choice = {
            "judged_on": "validation",
            "validation": info["spec"]["validation"],
            "validation_accuracy": accuracy,
            "designs": info["designs"],
            "search": info["id"],
        }
        final = {"epochs": info["rungs"][-1], "validation": 0, "test_at": "end"}
        bench = replace(self.bench, subject=replace(self._training(), choice=choice))
        [trial] = bench.have([{**proposal.values, **final}], len(info["rungs"]) + 1)
        return trial

    def _training(self) -> OwnTraining:
        subject = self.bench.subject
        assert isinstance(subject, OwnTraining), "a search trains networks of ours"
        return subject

    def _refuse_nothing(self, judged: list[Judged]) -> None:
        if any(accuracy is not None for _, accuracy in judged):
            return
        trials = [each for each in load_sweep(self.bench.folder.path).trials if each.reason]
        why = trials[-1].reason if trials else "none was completed"
        raise AnswerIsNo(f"no design could be trained to be judged: {why}")


def _accuracy(trial: Trial) -> float | None:
    if trial.status != schema.COMPLETED:
        return None
    accuracy: float | None = trial.metrics.get("validation_accuracy")
    return accuracy


def _best_first(judged: list[Judged]) -> list[Judged]:
    """Order designs; of equals that which was proposed first."""
    return sorted(judged, key=lambda each: merit(each[1], each[0].figures["energy_mj"]))


def _refuse_untested(finals: list[Trial]) -> None:
    if all(trial.status != schema.COMPLETED for trial in finals):
        raise AnswerIsNo(f"nothing that was chosen could be tested: {finals[0].reason}")
