"""Points for an efficient network: by test error, energy and cycles, with hard limits and rules.

The rubric is that of the MIT course 6.5930 (2023). Its bands are half-open: an error of 39.5 % is
in 30 to 39. A megabyte is 10^6 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
    """Points in all and by part, limits that were passed, and rules that were broken.

    Broken rules take no points off: a network that breaks one does not take part.
    """

    points: int
    by_part: dict[str, int]
    limits_exceeded: tuple[str, ...]
    rules_broken: tuple[str, ...]
    unknown: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def score(
    accuracy: float,
    energy_mj: float,
    cycles: float,
    peak_activation_bytes: float,
    rules: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Score:
    """Give points; `rules` are those broken, and those of which the record does not tell."""
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
    total = 0 if exceeded else sum(parts.values())
    return Score(total, parts, tuple(exceeded), tuple(rules[0]), tuple(rules[1]))


def _points(value: float, bands: Sequence[tuple[float, int]]) -> int:
    return next((points for limit, points in bands if value < limit), 0)


def rules_of(info: Mapping[str, Any], design: str) -> tuple[list[str], list[str]]:
    """Return which rules a run broke, and of which its record does not tell."""
    spec = info.get("spec") or {}
    broken, unknown = [], []
    if spec.get("augment", "none") != "none":
        broken.append(f"no augmentation: the run had {spec['augment']}")
    if spec.get("optimizer", "sgd") != "sgd":
        broken.append(f"SGD alone: the run had {spec['optimizer']}")
    epochs = spec.get("epochs")
    if isinstance(epochs, int) and epochs >= MOST_EPOCHS:
        broken.append(f"fewer than {MOST_EPOCHS} epochs: the run had {epochs}")
    if spec.get("weights") is not None:
        broken.append(f"no pre-trained weights: the run began from {spec['weights']}")
    if design != DESIGN:
        broken.append(f"the given design, {DESIGN}: the estimate is of {design}")
    for name in ("seed", "lr", "momentum", "weight_decay", "batch_size", "epochs", "optimizer"):
        if spec.get(name) is None:
            broken.append(f"seed and hyper-parameters are recorded: there is no {name}")
    chosen_by = (info.get("choice") or {}).get("judged_on")
    if chosen_by == "test":
        broken.append("no choice by the test set: this one was made by it")
    elif chosen_by is None:
        unknown.append(
            "whether any choice was made by the test set: the record is of one run alone"
        )
    return broken, unknown
