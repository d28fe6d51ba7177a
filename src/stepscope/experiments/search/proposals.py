"""Designs, proposed one by one by Optuna and compared with the budget before any training.

A budget is the most that a network may cost on an accelerator: `energy_mj=0.5,cycles=1e5`.

Nothing of Optuna is kept on disk. A resumed search replays its recorded proposals and results in
order, and each new proposal has its own seed, so it proposes the same as without the stop.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import AnswerIsNo, RequestError, nearest, require_packages
from stepscope.experiments.search.search_space import Space, suggest
from stepscope.records.types import DesignProposal, SettingValue

if TYPE_CHECKING:
    from optuna import Study, Trial

FIGURES = ("energy_mj", "cycles", "peak_activation_bytes")


@dataclass(frozen=True)
class SearchBudget:
    """The largest value of each limited figure."""

    limits: Mapping[str, float]

    def excess(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Return the share by which each figure exceeds its limit; at most 0 is within."""
        return {name: figures[name] / limit - 1 for name, limit in self.limits.items()}

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Return whether all figures are within their limits."""
        return all(share <= 0 for share in self.excess(figures).values())

    def __str__(self) -> str:
        return ",".join(f"{name}={limit:g}" for name, limit in self.limits.items())


def read_budget(text: str) -> SearchBudget:
    """Parse limits given by the user."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise RequestError(
                f"budget: wanted NAME=NUMBER, like energy_mj=0.5,cycles=1e5, found {part!r}."
            )
        if name not in FIGURES:
            raise RequestError(f"budget: there is no figure {name!r}.{nearest(name, FIGURES)}")
        if name in limits:
            raise RequestError(f"budget: {name} is given twice. Give each limit once.")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = math.nan
        if not 0 < limits[name] < math.inf:
            raise RequestError(
                f"budget: wanted a number above 0 for {name}, found {value.strip()!r}."
            )
    return SearchBudget(limits)


MOST_IN_A_ROW = 100
_MOST_DRAWS = 1000  # of one proposal: the smallest spaces have a few dozen designs

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Asked:
    """The budget, the space and the seed of a search."""

    budget: SearchBudget
    space: Space
    seed: int


def propose(
    asked: Asked,
    recorded: Sequence[DesignProposal],
    record: Callable[[DesignProposal], None],
    estimate: Callable[[str], Figures],
) -> Iterator[tuple[DesignProposal, Callable[[float | None], None]]]:
    """Yield designs within the budget, each with a function that takes its accuracy, if any.

    It is called in their order; a design that is requested before is proposed without it.
    `recorded` proposals are given again; `record` receives new ones.

    Raises:
        AnswerIsNo: too many in a row exceed the budget, or everything was proposed.
        MissingExtraError: Optuna is not installed.
    """
    require_packages("a search", "search", "optuna")
    import optuna
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    proposals: list[DesignProposal] = []
    while True:
        number = len(proposals)
        if number < len(recorded):
            proposal = recorded[number]
            study.enqueue_trial(proposal["drawn"])
            trial = study.ask()
            suggest(trial, asked.space)
        else:
            trial, values = _draw(study, asked, [each["values"] for each in proposals])
            figures = dict(estimate(str(values.get("model") or asked.space.fixed["model"])))
            proposal = {
                "drawn": trial.params,
                "values": values,
                "figures": figures,
                "fits": asked.budget.holds(figures),
            }
            record(proposal)
        proposals.append(proposal)
        for name, share in asked.budget.excess(proposal["figures"]).items():
            trial.set_constraint(name, share)
        if not proposal["fits"]:
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
    """Draw a design that was not proposed before.

    A repeated draw is marked as failed, which samplers ignore: a resumed search does not draw it.
    """
    from optuna.samplers import RandomSampler, TPESampler
    from optuna.trial import TrialState

    seeds = random.Random(f"{asked.seed}/{len(before)}")
    for draw in range(_MOST_DRAWS):
        sampler = RandomSampler if draw else TPESampler  # TPE may repeat itself
        study.sampler = sampler(seed=seeds.getrandbits(32))
        trial = study.ask()
        values = suggest(trial, asked.space)
        if values not in before:
            return trial, values
        study.tell(trial, state=TrialState.FAIL)
    raise AnswerIsNo(f"no new design is left after {len(before)} proposals. Lower --trials.")


def refuse_too_many(proposals: Sequence[DesignProposal], asked: Asked) -> None:
    """Raise if the last proposals all exceed the budget; for a given network, the first."""
    budget, fixed = asked.budget, asked.space.fixed
    most = 1 if "model" in fixed else MOST_IN_A_ROW
    last = proposals[-most:]
    if len(last) < most or any(proposal["fits"] for proposal in last):
        return
    cheapest = min(proposals, key=lambda each: max(budget.excess(each["figures"]).values()))
    figures = ", ".join(f"{name}={cheapest['figures'][name]:g}" for name in budget.limits)
    if "model" in fixed:
        raise AnswerIsNo(
            f"{fixed['model']} is above {budget}: it takes {figures}. Raise the budget, or "
            "leave out --model to search for a network."
        )
    raise AnswerIsNo(
        f"no design was found within {budget}: {len(last)} in a row are above it. The nearest "
        f"is {cheapest['values']['model']} with {figures}. Raise the budget."
    )
