"""Points for an efficient network by test error, energy and cycles, with hard limits and rules.

The rubric is that of the MIT course 6.5930 (2023). Its bands are half-open: an error of 39.5 % is
in 30 to 39. A megabyte is 10^6 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.records.types import RecordedSpec

DESIGN = "simple_weight_stationary"
MOST_EPOCHS = 30

# Below each of these, so many points.
_ERROR = ((0.2, 60), (0.3, 50), (0.4, 40), (0.5, 30))
_ENERGY_MJ = ((0.5, 20), (1.0, 15), (1.5, 10), (2.0, 5))
_CYCLES = ((1e5, 20), (2.5e5, 15), (5e5, 10), (1e6, 5))
_PEAK_BYTES = 10**6
_ERROR_LIMIT = 0.5


@dataclass(frozen=True)
class Score:
    """The points, in total and by part, and the exceeded limits, which leave no points."""

    points: int
    by_part: dict[str, int]
    limits_exceeded: list[str]


@dataclass(frozen=True)
class RuleCheck:
    """The rules that a run broke, and those that its record cannot answer.

    Broken rules cost no points: a network that breaks one does not take part.
    """

    broken: list[str]
    unknown: list[str]


def score(accuracy: float, energy_mj: float, cycles: float, peak_activation_bytes: float) -> Score:
    """Return the points of a network."""
    # An error of exactly 20 % must not become 19.999… by the subtraction.
    error = round(1 - accuracy, 9)
    exceeded = []
    if peak_activation_bytes >= _PEAK_BYTES:
        exceeded.append(f"peak activation of {peak_activation_bytes:,.0f} bytes is not below 1 MB")
    if error >= _ERROR_LIMIT:
        exceeded.append(f"test error of {error:.2%} is not below 50 %")
    parts = {
        "accuracy": _points(error, _ERROR),
        "energy": _points(energy_mj, _ENERGY_MJ),
        "latency": _points(cycles, _CYCLES),
    }
    return Score(0 if exceeded else sum(parts.values()), parts, exceeded)


def _points(value: float, bands: Sequence[tuple[float, int]]) -> int:
    return next((points for limit, points in bands if value < limit), 0)


def check_rules(spec: RecordedSpec, chosen_by: str | None, design: str) -> RuleCheck:
    """Check the rules for a run with these settings and the design of its estimate.

    `chosen_by` is the split by which an experiment chose the settings; None if unknown.
    """
    broken, unknown = [], []
    if spec.get("augment", "none") != "none":
        broken.append(f"no augmentation: the run used {spec['augment']}")
    if spec.get("optimizer", "sgd") != "sgd":
        broken.append(f"SGD only: the run used {spec['optimizer']}")
    epochs = spec.get("epochs")
    if isinstance(epochs, int) and epochs >= MOST_EPOCHS:
        broken.append(f"fewer than {MOST_EPOCHS} epochs: the run had {epochs}")
    if spec.get("weights") is not None:
        broken.append(f"no pre-trained weights: the run started from {spec['weights']}")
    if design != DESIGN:
        broken.append(f"the given design, {DESIGN}: the estimate used {design}")
    for name in ("seed", "lr", "momentum", "weight_decay", "batch_size", "epochs", "optimizer"):
        if spec.get(name) is None:
            broken.append(f"seed and hyper-parameters are recorded: {name} is missing")
    if chosen_by == "test":
        broken.append("no choice by the test set: it chose these settings")
    elif chosen_by is None:
        unknown.append("whether the test set chose the settings: the record has one run only")
    return RuleCheck(broken, unknown)
