"""The networks and training settings that a search draws from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.errors import RequestError
from stepscope.models.efficient_design import ACTIVATIONS, BLOCKS, HEADS, POOLS, EfficientDesign
from stepscope.records.types import SearchPlan, SettingValue
from stepscope.settings import RunSpec

if TYPE_CHECKING:
    from optuna import Trial

_STEMS = ("s2d4", "s2d2", "conv4", "conv2")
_FEWEST_STAGES, _MOST_STAGES = 2, 4
_WIDTH_STEP, _WIDEST = 16, 256  # an array spreads 16 channels at once
_BATCH_SIZES = (32, 64, 128, 256)
_FEWEST_STEPS = 4  # of an epoch: with fewer, a large batch learns next to nothing
_MOMENTA = (0.8, 0.9, 0.95)
_SCHEDULES = ("one-cycle", "cosine")


@dataclass(frozen=True)
class Space:
    """The settings that the user has not fixed, and the limits of the data."""

    fixed: Mapping[str, SettingValue]
    training_samples: int
    shape: Sequence[int]  # channels, height, width

    @property
    def batch_sizes(self) -> list[int]:
        """The batch sizes with which an epoch has enough steps."""
        batches = self.fixed_count("accumulate") * _FEWEST_STEPS
        processes = self.fixed_count("processes")
        return [
            size
            for size in _BATCH_SIZES
            if size >= processes and size * batches <= self.training_samples
        ]

    def fixed_count(self, name: str) -> int:
        """Return a number that the user fixed, else 1."""
        count = self.fixed.get(name, 1)
        return count if isinstance(count, int) else 1

    @property
    def stems(self) -> list[str]:
        """The stems that accept such images and leave enough pixels for two stages.

        Space-to-depth needs sides that are whole multiples of its factor.
        """
        return [
            stem
            for stem in _STEMS
            if self.most_stages(stem) >= _FEWEST_STAGES
            and not (
                stem.startswith("s2d") and any(side % int(stem[-1]) for side in self.shape[1:])
            )
        ]

    def most_stages(self, stem: str) -> int:
        """Return how many stages leave a side of 2 or more: batch norm fails on a single pixel."""
        side = -(-min(self.shape[1:]) // int(stem[-1]))
        return min(_MOST_STAGES, (side - 1).bit_length())  # every further stage halves, rounded up

    @property
    def ways(self) -> float:
        """How many different designs can be drawn; infinite for continuous settings."""
        ways = {
            "model": math.inf,
            "batch_size": len(self.batch_sizes),
            "lr": math.inf,
            "momentum": len(_MOMENTA),
            "weight_decay": math.inf,
            "schedule": len(_SCHEDULES),
        }
        return math.prod(count for name, count in ways.items() if name not in self.fixed)

    @property
    def least(self) -> dict[str, SettingValue]:
        """The smallest settings: if these are refused, all are."""
        sizes = self.batch_sizes or _BATCH_SIZES
        least: dict[str, SettingValue] = {
            "model": EfficientDesign((16, 16), (0, 1)).name,
            "batch_size": sizes[0],
        }
        return {name: value for name, value in least.items() if name not in self.fixed}


def space_of(info: SearchPlan, spec: RunSpec) -> Space:
    """Return the space of a recorded search."""
    fixed = {name: getattr(spec, name) for name in info["named"]}
    return Space(fixed, info["training_samples"], info["input"])


def check_space(space: Space, designs: int) -> None:
    """Refuse a search with fewer different designs than it should try."""
    if "batch_size" not in space.fixed and not space.batch_sizes:
        accumulate, processes = (space.fixed_count(n) for n in ("accumulate", "processes"))
        least = next((size for size in _BATCH_SIZES if size >= processes), processes)
        times = f" x accumulate {accumulate}" if accumulate > 1 else ""
        raise RequestError(
            f"batch_size: wanted {_FEWEST_STEPS} steps of {least}{times} samples or more in an "
            f"epoch, found {space.training_samples:,} samples to train on. Use more --samples, or "
            "name a --batch-size."
        )
    if "model" not in space.fixed and not space.stems:
        height, width = space.shape[1:]
        raise RequestError(
            f"input: wanted images large enough for {_FEWEST_STAGES} stages of a network, found "
            f"{height}x{width} pixels. Use larger ones, or name a --model."
        )
    if space.ways < 2:
        raise RequestError(
            "nothing is left to search: the model and all its training settings are fixed. Leave "
            "out one of them, or use stepscope run."
        )
    if designs > space.ways:
        raise RequestError(
            f"trials: wanted at most {space.ways}, the combinations that the fixed settings leave, "
            f"found {designs}."
        )


def suggest(trial: Trial, space: Space) -> dict[str, SettingValue]:
    """Draw a network and its training settings, except those that the user fixed."""
    draws: dict[str, Callable[[], SettingValue]] = {
        "model": lambda: suggest_design(trial, space).name,
        "batch_size": lambda: trial.suggest_categorical("batch_size", space.batch_sizes),
        "lr": lambda: trial.suggest_float("lr", 0.005, 0.5, log=True),
        "momentum": lambda: trial.suggest_categorical("momentum", _MOMENTA),
        "weight_decay": lambda: trial.suggest_float("weight_decay", 1e-5, 1e-2, log=True),
        "schedule": lambda: trial.suggest_categorical("schedule", _SCHEDULES),
    }
    return {name: draw() for name, draw in draws.items() if name not in space.fixed}


def suggest_design(trial: Trial, space: Space) -> EfficientDesign:
    """Draw a network whose stages do not become narrower."""
    stem = trial.suggest_categorical("stem", space.stems)
    stages = trial.suggest_int("stages", _FEWEST_STAGES, space.most_stages(stem))
    width = trial.suggest_int("width", _WIDTH_STEP, 96, step=_WIDTH_STEP)
    widths, depths = [width], [trial.suggest_int("depth_1", 0, 2)]
    for stage in range(2, stages + 1):
        wider = trial.suggest_int(f"wider_{stage}", 0, 96, step=_WIDTH_STEP)
        widths.append(min(_WIDEST, widths[-1] + wider))
        depths.append(trial.suggest_int(f"depth_{stage}", 1, 3))
    pool = trial.suggest_categorical("pool", POOLS)
    may_mirror = stem.startswith("s2d") and pool != "stride"
    return EfficientDesign(
        tuple(widths),
        tuple(depths),
        stem=stem[:-1],
        stem_factor=int(stem[-1]),
        kernel=trial.suggest_categorical("kernel", (3, 5)),
        block=trial.suggest_categorical("block", BLOCKS),
        activation=trial.suggest_categorical("activation", ACTIVATIONS),
        squeeze=trial.suggest_categorical("squeeze", (0, 8)),
        pool=pool,
        mirror=may_mirror and trial.suggest_categorical("mirror", (False, True)),
        head=trial.suggest_categorical("head", HEADS),
        dropout_percents=_dropouts(trial, stages),
    )


def _dropouts(trial: Trial, stages: int) -> tuple[int, ...]:
    """Draw dropout for the stages, and more of it before the last layer."""
    each = trial.suggest_int("dropout_percent", 0, 20, step=5)
    last = each + trial.suggest_int("more_dropout_percent", 0, 20, step=10)
    return (each,) * (stages - 1) + (last,) if last else ()
