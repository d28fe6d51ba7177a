"""The plan of a run: a flat list of stages, so that a position is two numbers.

    test 0, train 1, test 1, train 2, test 2, ...

The test of epoch 0 runs before training. If samples are held out, the run evaluates on them and the
stages are called `validation`. A checkpoint stores the stage and the number of its steps done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Stage:
    """One pass over a split. `steps` counts optimiser steps, 0 for an evaluation."""

    split: Literal["train", "test", "validation"]
    epoch: int
    steps: int = 0


@dataclass(frozen=True)
class Position:
    """A position in a run: the current stage, and how many of its steps are done."""

    stage: int = 0
    step: int = 0


def plan_stages(
    epochs: int,
    steps_per_epoch: int,
    max_steps: int | None,
    *,
    evaluation_split: Literal["test", "validation"] | None = "test",
    at_end_only: bool = False,
) -> list[Stage]:
    """Return the stages of a run. `max_steps` may shorten the last epoch."""
    every_epoch = None if at_end_only else evaluation_split
    stages = [Stage(every_epoch, 0)] if every_epoch else []
    left = epochs * steps_per_epoch if max_steps is None else max_steps
    for epoch in range(1, epochs + 1):
        if left <= 0:
            break
        steps = min(steps_per_epoch, left)
        stages.append(Stage("train", epoch, steps))
        if every_epoch:
            stages.append(Stage(every_epoch, epoch))
        left -= steps
    if evaluation_split and at_end_only:
        stages.append(Stage(evaluation_split, stages[-1].epoch))
    return stages


def total_steps(stages: list[Stage]) -> int:
    """Return the number of optimiser steps of a run."""
    return sum(stage.steps for stage in stages)
