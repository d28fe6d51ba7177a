"""A network that kills loader workers while it computes, at batches that its name tells.

It is LeNet otherwise. Without workers it kills nobody, so the same network trains undisturbed.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping

import torch
from torch import nn

from stepscope.models.registry import build

EVERYBODY = 1000


class Killer(nn.Module):
    """Kill so many workers at certain batches, counted over the run, in training or in tests."""

    def __init__(
        self, classes: int, *, training: Mapping[int, int] = {}, testing: Mapping[int, int] = {}
    ) -> None:
        super().__init__()
        self.network = build("lenet", classes=classes, norm="batch")
        self.victims = {True: training, False: testing}
        self.batches = {True: 0, False: 0}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        workers = _newest_first()
        if workers:  # what is tried before any loader exists is not counted
            self.batches[self.training] += 1
            wanted = self.victims[self.training].get(self.batches[self.training], 0)
            for worker in workers[:wanted]:
                worker.kill()
                worker.join()  # dead before the loop waits again
        scores: torch.Tensor = self.network(images)
        return scores


def _newest_first() -> list[multiprocessing.Process]:
    """List the workers; where they persist, those of the split under way are the newest."""
    living = multiprocessing.active_children()
    return sorted(living, key=lambda each: int(each.name.rpartition("-")[2]), reverse=True)


def one(num_classes: int) -> nn.Module:
    return Killer(num_classes, training={2: 1})


def one_in_the_test(num_classes: int) -> nn.Module:
    return Killer(num_classes, testing={1: EVERYBODY})


def one_at_the_last_batch(num_classes: int) -> nn.Module:
    return Killer(num_classes, training={6: 1})
