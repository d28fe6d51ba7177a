"""The search itself, written as if it were never stopped: what is recorded is not done again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
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
            judged = [(each, self._train(each, epochs, rung)) for each in again]
        self._refuse_nothing(judged)
        chosen = [each for each in _best_first(judged) if each[1] is not None]
        _refuse_untested([self._test(each, info) for each in chosen[: info["finals"]]])

    def _first_rung(self, info: Mapping[str, Any], epochs: int) -> list[Judged]:
        """Train designs as they are proposed: what one comes to guides the next."""
        space = space_of(info, self._training().spec({}))
        asked = Asked(Budget(info["budget"]), space, info["seed"])
        recorded = [Proposal(**each) for each in info["proposals"]]
        judged: list[Judged] = []
        for proposal, tell in propose(asked, recorded, self._record, self._figures):
            accuracy = self._train(proposal, epochs, 1)
            tell(accuracy)
            judged.append((proposal, accuracy))
            if len(judged) == info["designs"]:
                break
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

    def _train(self, proposal: Proposal, epochs: int, rung: int) -> float | None:
        trial = self._trial({**proposal.values, "epochs": epochs}, rung, self.bench)
        if trial.status != schema.COMPLETED:
            return None
        accuracy: float | None = trial.metrics.get("validation_accuracy")
        return accuracy

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
        return self._trial({**proposal.values, **final}, len(info["rungs"]) + 1, bench)

    def _trial(self, values: dict[str, Any], rung: int, bench: Bench) -> Trial:
        """Return the trial of a rung from the record, or make it."""
        for trial in load_sweep(bench.folder.path).trials:
            if trial.values == values and trial.repeat == rung:
                if not trial.is_missing:
                    return trial
                bench.onlooker.trying(trial, None, None)
                return bench.make(trial)
        return bench.add(values, rung)

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


def _best_first(judged: list[Judged]) -> list[Judged]:
    """Order designs; of equals that which was proposed first."""
    return sorted(judged, key=lambda each: merit(each[1], each[0].figures["energy_mj"]))


def _refuse_untested(finals: list[Trial]) -> None:
    if all(trial.status != schema.COMPLETED for trial in finals):
        raise AnswerIsNo(f"nothing that was chosen could be tested: {finals[0].reason}")
