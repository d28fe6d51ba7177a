"""What did a search find? Each trained design with its cost and accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from stepscope.records import schema
from stepscope.records.sweep_folder import Sweep, Trial
from stepscope.records.types import (
    DesignCosts,
    DesignProposal,
    RejectedDesign,
    SearchedDesign,
    Setting,
)

# --- Pareto front


def front(points: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the indices of the Pareto front: no different point is as good in every value."""
    return [
        index
        for index, point in enumerate(points)
        if not any(
            other != point and all(a >= b for a, b in zip(other, point, strict=True))
            for other in points
        )
    ]


KIND = "search"

_OF_THE_SEARCH = ("validation", "name", "out")  # settings that apply to the search only


def is_search(sweep: Sweep) -> bool:
    """Return whether a sweep folder is a search's."""
    return sweep.info.get("kind") == KIND


def designs_of(sweep: Sweep) -> list[SearchedDesign]:
    """Return a row for each trained design, those with the most epochs first, then the best.

    `on_front`: no other design is better in validation accuracy, energy and cycles at once.
    """
    rows = [
        _row(sweep, proposal, trials)
        for proposal in sweep.info.get("proposals") or []
        if (trials := _trials_of(sweep, proposal["values"]))
    ]
    known = [(row, found) for row in rows if (found := row["validation_accuracy"]) is not None]
    for index in front([(found, -row["energy_mj"], -row["cycles"]) for row, found in known]):
        known[index][0]["on_front"] = True
    return sorted(
        rows,
        key=lambda row: (-row["epochs"], *merit(row["validation_accuracy"], row["energy_mj"])),
    )


def merit(accuracy: float | None, energy_mj: float) -> tuple[float, float]:
    """Return the sort key of a design: the most accurate first, then the lowest energy."""
    return (math.inf if accuracy is None else -accuracy, energy_mj)


def rejected_of(sweep: Sweep) -> list[RejectedDesign]:
    """Return the designs that exceeded the budget, with their figures."""
    return [
        {"model": _model(sweep, each["values"]), **_costs(each)}
        for each in sweep.info.get("proposals") or []
        if not each["fits"]
    ]


def settings_again(sweep: Sweep, row: SearchedDesign) -> Setting:
    """Return the settings of a run that trains a design on all samples, as its final test does."""
    named = {
        name: value
        for name, value in (sweep.info.get("spec") or {}).items()
        if name not in _OF_THE_SEARCH and value is not None
    }
    trained = {"model": row["model"], **row["settings"], **named}
    return {**trained, "epochs": row["epochs"], "test_at": "end"}


def _costs(proposal: DesignProposal) -> DesignCosts:
    figures = proposal["figures"]
    return cast("DesignCosts", {name: figures[name] for name in DesignCosts.__annotations__})


def _row(
    sweep: Sweep, proposal: DesignProposal, trials: tuple[list[Trial], Trial | None]
) -> SearchedDesign:
    evaluated, final = trials
    done = [trial for trial in evaluated if trial.status == schema.COMPLETED]
    last, longest = evaluated[-1], (done or evaluated)[-1]
    tested = final is not None and final.status == schema.COMPLETED
    settings = {name: value for name, value in proposal["values"].items() if name != "model"}
    return {
        "model": _model(sweep, proposal["values"]),
        **_costs(proposal),
        "settings": settings,
        "rung": longest.repeat,
        "epochs": int(str(longest.values["epochs"])),
        "status": last.status,
        "reason": last.reason,
        "validation_accuracy": longest.metrics.get("validation_accuracy") if done else None,
        "test_accuracy": final.metrics.get("test_accuracy") if final and tested else None,
        "run": longest.run,
        "final_run": final.run if final else None,
        "final_status": final.status if final else None,
        "final_reason": final.reason if final else None,
        "on_front": False,
    }


def _trials_of(sweep: Sweep, values: Setting) -> tuple[list[Trial], Trial | None] | None:
    """Return the trials of a design, rung by rung, and its final test, if any."""
    own = [trial for trial in sweep.trials if values.items() <= trial.values.items()]
    evaluated = [trial for trial in own if "test_at" not in trial.values]
    final = next((trial for trial in own if "test_at" in trial.values), None)
    return (evaluated, final) if evaluated else None


def _model(sweep: Sweep, values: Setting) -> str:
    return str(values.get("model") or (sweep.info.get("spec") or {}).get("model"))
