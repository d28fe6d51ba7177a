"""What each hook of `stepscope trace` costs a step, in microseconds.

A step that computes next to nothing is trained in short blocks, with one kind of hook on, with all
or with none, in an order that changes every round. Compared are not the means but the steps that
went nearly undisturbed, a low quantile of each: that holds on a busy machine too, and leaves out
what comes now and then (flushing, the collector). After hooks are put on or taken off Python has to
find its way again: the first steps are left out.

Caches are warmer here than in a real step, where hooks cost more.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepscope.hardware.host import cpu_model
from stepscope.meter.clock import now_ns
from stepscope.stats.intervals import quantile
from stepscope.trace import torch_hooks
from stepscope.trace.allreduce_hooks import AllreduceWatch
from stepscope.trace.event_buffer import HookState
from stepscope.trace.patches import Patches

FIRST_STEPS, STEPS, SUBMODULES = 60, 120, 14
UNDISTURBED = 0.02

# Which replaced attributes belong to a hook; None is all of them.
HOOKS: dict[str, frozenset[str] | None] = {
    "fetch": frozenset({"__iter__", "__next__"}),
    "two moves within the CPU": frozenset({"to"}),
    "zero_grad": frozenset({"zero_grad"}),
    f"module with {SUBMODULES} in it": frozenset({"__call__"}),
    "backward": frozenset({"backward"}),
    "optimiser's step": frozenset({"step", "_patch_step_function"}),
    "all": None,
}


class Training:
    """A plain loop around a network that does nothing."""

    def __init__(self) -> None:
        samples = 8 * (FIRST_STEPS + STEPS)
        data = TensorDataset(torch.randn(samples, 1), torch.randn(samples, 1))
        self.loader = DataLoader(data, batch_size=8)
        idle = [nn.Identity() for _ in range(SUBMODULES - 1)]
        self.model = nn.Sequential(*idle, nn.Linear(1, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def block(self) -> list[float]:
        """Train one block; return the microseconds of its steps, without the first."""
        device = torch.device("cpu")
        ends_ns = []
        for values, wanted in self.loader:
            values, wanted = values.to(device), wanted.to(device)
            self.optimizer.zero_grad()
            loss = (self.model(values) - wanted).pow(2).sum()
            loss.backward()
            self.optimizer.step()
            ends_ns.append(now_ns())
        return [(end - begin) * 1e-3 for begin, end in pairwise(ends_ns[FIRST_STEPS:])]


def hooked(training: Training, names: frozenset[str] | None) -> list[float]:
    """Train a block with the hooks on that replace attributes of these names."""

    class Some(Patches):
        def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
            if names is None or name in names:
                super().replace(owner, name, make)

    with mock.patch.object(torch_hooks, "Patches", Some):
        patches = torch_hooks.install(HookState(AllreduceWatch()))
    try:
        return training.block()
    finally:
        patches.undo()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    training = Training()
    took: dict[str, list[float]] = {name: [] for name in ("bare", "bare again", *HOOKS)}
    gc.disable()
    for _ in range(rounds):
        for name in random.sample(list(took), len(took)):
            took[name] += hooked(training, HOOKS[name]) if name in HOOKS else training.block()
    least = {name: quantile(sorted(each), UNDISTURBED) for name, each in took.items()}
    print(f"{rounds} rounds of {STEPS} steps; a bare step takes {least['bare']:.1f} us")
    for name in ("bare again", *HOOKS):
        print(f"  {name:26} {least[name] - least['bare']:+6.1f} us")
    print(f"  on {cpu_model()}, {os.cpu_count()} CPUs, torch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
