"""Networks that a user might bring, and the weights of a run."""

from __future__ import annotations

import torch
from torch import nn

from stepscope.records.run_reader import Run

LINEAR = "user_networks:linear"
DROPOUT = "user_networks:with_dropout"
BLOCKS = "user_networks:in_blocks"


def linear(num_classes: int) -> nn.Module:
    """Make the quickest thing that learns."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))


def with_dropout(num_classes: int) -> nn.Module:
    """Make the quickest thing whose losses depend on random numbers in the step."""
    return nn.Sequential(nn.Dropout(), *linear(num_classes))


def in_blocks(num_classes: int) -> nn.Module:
    """Make the quickest thing with blocks whose activations can be recomputed, and statistics."""
    blocks = [
        nn.Sequential(nn.Conv2d(inside, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        for inside in (3, 4, 4)
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * 32 * 32, num_classes))


def weights(run: Run) -> dict[str, torch.Tensor]:
    saved: dict[str, torch.Tensor] = torch.load(run.path / "checkpoint.pt")["model"]
    return saved


def same_weights(one: Run, other: Run) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
