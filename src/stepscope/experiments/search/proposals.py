"""Designs, proposed one after the other by Optuna and held against the budget before any training.

Nothing of Optuna is kept on disk. A resumed search replays its recorded proposals and results
again, in their order, and each new proposal has a seed of its own: so it proposes what it would
have proposed had it never been stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import AnswerIsNo, MissingExtraError
from stepscope.experiments.search.search_budget import SearchBudget
from stepscope.experiments.search.search_space import Space, suggest
from stepscope.records.types import SettingValue

if TYPE_CHECKING:
    from optuna import Study, Trial

MOST_IN_A_ROW = 100
_MOST_DRAWS = 1000  # of one proposal: the smallest spaces have a few dozen ways

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Proposal:
    """A network and how it is trained: as drawn, as settings of a run, and by its estimate."""

    drawn: dict[str, SettingValue]
    values: dict[str, SettingValue]
    figures: dict[str, float]
    fits: bool


@dataclass(frozen=True)
class Asked:
    """What is searched: within which budget, among what, from which seed."""

    budget: SearchBudget
    space: Space
    seed: int


def propose(
    asked: Asked,
    recorded: Sequence[Proposal],
    record: Callable[[Proposal], None],
    estimate: Callable[[str], Figures],
) -> Iterator[tuple[Proposal, Callable[[float | None], None]]]:
    """Yield designs within the budget, each with a function that takes its accuracy.

    That is called in their order; the next one may be asked for before, and is then proposed
    without knowing it. None says that there was no result.
    `recorded` are the proposals of earlier, which are given again; `record` hears of new ones.

    Raises:
        AnswerIsNo: so many in a row did not fit, and the message names the cheapest; or all that
            can be drawn was proposed.
        MissingExtraError: Optuna is not installed.
    """
    try:
        import optuna
        from optuna.trial import TrialState
    except ModuleNotFoundError as error:
        raise MissingExtraError("a search", str(error.name), "search") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    proposals: list[Proposal] = []
    while True:
        number = len(proposals)
        if number < len(recorded):
            proposal = recorded[number]
            study.enqueue_trial(proposal.drawn)
            trial = study.ask()
            suggest(trial, asked.space)
        else:
            trial, values = _draw(study, asked, [each.values for each in proposals])
            figures = dict(estimate(str(values.get("model") or asked.space.fixed["model"])))
            proposal = Proposal(trial.params, values, figures, asked.budget.holds(figures))
            record(proposal)
        proposals.append(proposal)
        for name, share in asked.budget.excess(proposal.figures).items():
            trial.set_constraint(name, share)
        if not proposal.fits:
            study.tell(trial, state=TrialState.PRUNED)
            refuse_too_many(proposals, asked)
            continue

        def tell(accuracy: float | None, trial: Trial = trial) -> None:
            if accuracy is None:
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, accuracy)

        yield proposal, tell


def _draw(
    study: Study, asked: Asked, before: Sequence[Mapping[str, SettingValue]]
) -> tuple[Trial, dict[str, SettingValue]]:
    """Draw what was not proposed before.

    A repeated draw is marked as failed, which samplers ignore: a resumed search, which does not
    draw it again, stands where one stands that was never stopped.
    """
    from optuna.samplers import RandomSampler, TPESampler
    from optuna.trial import TrialState

    seeds = random.Random(f"{asked.seed}/{len(before)}")
    for draw in range(_MOST_DRAWS):
        sampler = RandomSampler if draw else TPESampler  # the best guess may be the same for ever
        study.sampler = sampler(seed=seeds.getrandbits(32))
        trial = study.ask()
        values = suggest(trial, asked.space)
        if values not in before:
            return trial, values
        study.tell(trial, state=TrialState.FAIL)
    raise AnswerIsNo(f"nothing new is left to try after {len(before)} proposals. Lower --trials.")


def refuse_too_many(proposals: Sequence[Proposal], asked: Asked) -> None:
    """Raise where the last proposals were all above the budget; of a given network, the first."""
    budget, fixed = asked.budget, asked.space.fixed
    most = 1 if "model" in fixed else MOST_IN_A_ROW
    last = proposals[-most:]
    if len(last) < most or any(proposal.fits for proposal in last):
        return
    cheapest = min(proposals, key=lambda each: max(budget.excess(each.figures).values()))
    figures = ", ".join(f"{name}={cheapest.figures[name]:g}" for name in budget.limits)
    if "model" in fixed:
        raise AnswerIsNo(
            f"{fixed['model']} is above {budget}: it takes {figures}. Raise the budget, or "
            "leave --model out to search one that is not."
        )
    raise AnswerIsNo(
        f"no design was found within {budget}: {len(last)} in a row are above it. The nearest "
        f"is {cheapest.values['model']} with {figures}. Raise the budget."
    )
