"""What share of a step is spent in the hooks of `stepscope trace`, by clocks around each of them.

`tracers.py` compares whole steps, and on a noisy machine the noise is larger than the difference.
Here nothing large is compared: a clock before a hook is asked and one before torch's own function
behind it, and the same on the way back. What lies between them is the hook's, in the step that it
is part of, caches as they are there. The same clocks without hooks say what they take themselves.
The median of what a step took to flush is added. Blocks with and without hooks take turns, and
their first steps are left out.

Not in it: what hooks do to the caches of the script, and the one comparison that a module inside of
another costs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import optim
from torch.utils.data import dataloader as torch_dataloader
from tracers import SETTINGS, AroundStep, Setting, Training, traced

from stepscope.hardware.host import cpu_model
from stepscope.meter.clock import now_ns
from stepscope.stats.intervals import median
from stepscope.trace.patches import Patches

HOOKED: dict[str, tuple[Any, str]] = {
    "fetch": (torch_dataloader._BaseDataLoaderIter, "__next__"),
    "moves within the CPU": (torch.Tensor, "to"),
    "zero_grad": (optim.Optimizer, "zero_grad"),
    "backward": (torch.autograd, "backward"),
    "optimiser's step": (optim.SGD, "step"),
}
MODULE = "module"
FLUSHING = "flushing"
# Steps of a block, and how many of its first are left out: the clocks around hooks change classes.
BLOCKS = {"lenet": (240, 60), "resnet18": (12, 1)}
Moments = list[tuple[int, int]]  # when a function began and ended


def clocked(moments: Moments) -> Callable[[Any], Any]:
    """Return what puts a clock around a function."""

    def around(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            begin_ns = now_ns()
            try:
                return function(*args, **kwargs)
            finally:
                moments.append((begin_ns, now_ns()))

        return call

    return around


class Clocked(Training):
    """A training with two clocks at each hook: around what is called, and around what torch does.

    The inner ones are on all the time. The outer ones are on while a block trains, if `is_clocked`:
    hooks that were put on before it lie between both.
    """

    is_clocked = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._called: dict[str, Moments] = {name: [] for name in (*HOOKED, MODULE)}
        self._done: dict[str, Moments] = {name: [] for name in (*HOOKED, MODULE)}
        inner = Patches()
        inner.replace(self.model, "forward", clocked(self._done[MODULE]))
        for name, (owner, attribute) in HOOKED.items():
            inner.replace(owner, attribute, clocked(self._done[name]))

    def block(self, around_step: AroundStep = contextlib.nullcontext) -> list[float]:
        """Train one block between the clocks, or without the outer ones."""
        if not self.is_clocked:
            return super().block(around_step)
        for moments in (*self._called.values(), *self._done.values()):
            moments.clear()
        outer = Patches()
        outer.replace(self, "model", lambda model: clocked(self._called[MODULE])(model.__call__))
        for name, (owner, attribute) in HOOKED.items():
            outer.replace(owner, attribute, clocked(self._called[name]))
        try:
            return super().block(around_step)
        finally:
            outer.undo()

    def between_us(self) -> dict[str, list[float]]:
        """Return by hook what lay between both clocks in each step of the last block."""
        return {name: self._in_each_step_us(name) for name in self._called}

    def _in_each_step_us(self, name: str) -> list[float]:
        pairs = zip(self._called[name], self._done[name], strict=True)
        each_us = [(done[0] - called[0] + called[1] - done[1]) * 1e-3 for called, done in pairs]
        calls = len(each_us) // len(self._called[MODULE])  # of a step
        sums_us = [sum(each_us[first : first + calls]) for first in range(0, len(each_us), calls)]
        return sums_us[self.first_steps :]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[each.model for each in SETTINGS])
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    met = [
        share_of_a_step(setting, args.rounds)
        for setting in SETTINGS
        if args.only in (None, setting.model)
    ]
    print(f"  on {cpu_model()}, {os.cpu_count()} CPUs, torch {torch.__version__}")
    return 0 if all(met) else 1


def share_of_a_step(setting: Setting, rounds: int) -> bool:
    """Measure one network, print a row a hook, and return whether what is wanted was met."""
    step_us, costs_us = costs_of_a_step_us(setting, rounds)
    print(f"{setting.model}, batch {setting.batch}, {rounds} rounds, a step of {step_us:.0f} us:")
    for name, cost_us in costs_us.items():
        print(f"  {name:20} {cost_us:6.1f} us")
    share = sum(costs_us.values()) / step_us
    met = 1 + share <= setting.most
    answer = "met" if met else "MISSED"
    print(f"  in all {sum(costs_us.values()):.1f} us, {share:.2%} of it; ", end="")
    print(f"wanted at most {setting.most - 1:.1%}: {answer}", flush=True)
    return met


def costs_of_a_step_us(setting: Setting, rounds: int) -> tuple[float, dict[str, float]]:
    """Return how long a step takes, and what each hook and flushing take of it."""
    steps, first_steps = BLOCKS[setting.model]
    training = Clocked(replace(setting, steps=steps, first_steps=first_steps))
    steps_us: list[float] = []
    between_us: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    with traced(training) as (traced_block, tracer):
        training.is_clocked = False
        traced_block()  # a hook that is not needed is taken off, unless a clock is around it
        training.is_clocked = True
        for _ in range(rounds):
            for hooked in random.sample((True, False), 2):
                took = (traced_block if hooked else training.block)()
                for name, each_us in training.between_us().items():
                    between_us[hooked].setdefault(name, []).extend(each_us)
                if not hooked:
                    steps_us += [seconds * 1e6 for seconds in took]
        flushing_us = median(tracer.flushings) * 1e6
    with_hooks, without = between_us[True], between_us[False]
    costs_us = {
        name: (median(with_hooks[name]) - median(without[name]))
        * len(without[name])
        / len(steps_us)
        for name in without
    }
    return median(steps_us), costs_us | {FLUSHING: flushing_us}


if __name__ == "__main__":
    sys.exit(main())
