"""What would another setting bring? Predictions from what one run measured.

`analyze.step_model` predicts the time of a step; here it becomes that of the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from stepscope.analyze.findings.finding import RunView
from stepscope.analyze.step_model import (
    FEWEST_STEPS,
    StepModel,
    batch_costs,
    restart_s,
    step_model,
)
from stepscope.errors import RequestError, nearest
from stepscope.records.run_reader import Run
from stepscope.records.types import EpochRow, WhatIfAnswer

# The standard deviation of the logarithm of predicted over measured step time: bench/what_if.py.
_MODEL_ERROR = 0.08


@dataclass(frozen=True)
class Prediction:
    """The expected step and wall time after a change; `interval` is that of the speed-up."""

    change: str
    step_s: float
    wall_s: float
    speedup: float
    interval: tuple[float, float]

    def to_json(self) -> WhatIfAnswer:
        """Return the prediction as the answer of `report --what-if`."""
        return {
            "change": self.change,
            "speedup": self.speedup,
            "interval": list(self.interval),
            "step_s": self.step_s,
            "wall_s": self.wall_s,
        }


# --- Changes


Change = Callable[["WhatIf", str], Prediction]


@dataclass(frozen=True)
class WhatIf:
    """A run, ready for questions."""

    run: Run

    @cached_property
    def view(self) -> RunView:
        """The steps that count."""
        return RunView(self.run)

    @cached_property
    def model(self) -> StepModel:
        """The parts of its mean step."""
        found = step_model(self.view)
        if found is None:
            raise RequestError(
                f"what-if: {self.run.path} has no timed loader, or fewer than {FEWEST_STEPS} "
                "steps after warm-up. Trace the script for longer: stepscope trace SCRIPT"
            )
        return found

    @cached_property
    def wall_s(self) -> float:
        """The time of the whole run."""
        wall_s = self.run.summary.get("wall_s")
        if wall_s is None:
            raise RequestError(f"what-if: {self.run.path} has not ended. Wait for its end.")
        return wall_s

    def with_step(self, change: str, step_s: float) -> Prediction:
        """Return what another time for every step would bring."""
        saved_s = (self.mean_step_s - step_s) * len(self.run.steps)
        return self.saving(change, saved_s, step_s)

    @property
    def mean_step_s(self) -> float:
        """The mean time of a step."""
        return self.view.mean("step_s") or 0.0

    def saving(self, change: str, saved_s: float, step_s: float | None = None) -> Prediction:
        """Return what so many seconds less would bring."""
        wall_s = max(self.wall_s - saved_s, 0.02 * self.wall_s)
        low_s, high_s = (
            max(self.wall_s - saved_s * math.exp(sign * 2 * _MODEL_ERROR), 0.02 * self.wall_s)
            for sign in (-1, 1)
        )
        if saved_s < 0:
            low_s, high_s = high_s, low_s
        return Prediction(
            change,
            self.mean_step_s if step_s is None else step_s,
            wall_s,
            self.wall_s / wall_s,
            (self.wall_s / low_s, self.wall_s / high_s),
        )


def with_workers(what_if: WhatIf, value: str) -> Prediction:
    """Predict another number of loader workers."""
    workers = _whole(value, "workers", 0)
    return what_if.with_step(f"num_workers={workers}", what_if.model.step_with(workers))


def with_free_loader(what_if: WhatIf, value: str) -> Prediction:
    """Predict a loader that costs nothing: the most that any change of it could bring."""
    if value != "free":
        raise RequestError(f"what-if: loader: wanted free, found {value!r}.")
    return what_if.with_step("a loader that costs nothing", what_if.model.step_without_loading())


def with_persistent_workers(what_if: WhatIf, value: str) -> Prediction:
    """Predict workers that are kept between epochs."""
    if value.lower() not in ("true", "1", "yes"):
        raise RequestError(f"what-if: persistent_workers: wanted true, found {value!r}.")
    return what_if.saving("persistent_workers=True", restart_s(what_if.view))


def with_rarer_evaluation(what_if: WhatIf, value: str) -> Prediction:
    """Predict an evaluation in one epoch of n."""
    every = _whole(value, "evaluate_every", 1)
    total_s = sum(row["total_s"] for row in evaluation_rows(what_if.run))
    return what_if.saving(f"evaluation every {every} epochs", total_s * (1 - 1 / every))


def with_batch_size(what_if: WhatIf, value: str) -> Prediction:
    """Predict another batch size, for the same number of samples."""
    size = _whole(value, "batch_size", 1)
    fixed_s, each_s, current = batch_costs(what_if.view)
    step_s = fixed_s + each_s * size
    saved_s = (what_if.mean_step_s - step_s * current / size) * len(what_if.run.steps)
    return what_if.saving(f"batch_size={size}", saved_s, step_s)


CHANGES: Mapping[str, Change] = {
    "workers": with_workers,
    "num_workers": with_workers,
    "loader": with_free_loader,
    "persistent_workers": with_persistent_workers,
    "evaluate_every": with_rarer_evaluation,
    "batch_size": with_batch_size,
}


def what_if(run: Run, question: str) -> Prediction:
    """Answer a question such as `workers=4` on a run."""
    name, equals, value = question.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not value.strip():
        raise RequestError(f"what-if: wanted NAME=VALUE such as workers=4, found {question!r}.")
    if name not in CHANGES:
        raise RequestError(f"what-if: unknown change {name!r}.{nearest(name, CHANGES)}")
    return CHANGES[name](WhatIf(run), value.strip())


def _whole(value: str, name: str, least: int) -> int:
    if not value.isdecimal() or int(value) < least:
        raise RequestError(f"what-if: {name}: wanted a whole number from {least}, found {value!r}.")
    return int(value)


# --- Costs besides the steps


def evaluation_rows(run: Run) -> list[EpochRow]:
    """Return the evaluations after training has begun."""
    return [row for row in run.epoch_rows() if row["split"] != "train" and row["total_s"]]
