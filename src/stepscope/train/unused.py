"""Which parameters of a network take no part in its steps?

Several processes wait for one another's gradient of every parameter, and would wait for ever for
one that is never made. A step is taken with tensors that have shapes and no values, so that
nothing is computed and nothing of the network changes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from stepscope.data import catalogue
from stepscope.estimate.eager import eagerly
from stepscope.spec import RunSpec
from stepscope.train.reading import reading_of


def has_unused_parameters(spec: RunSpec, model: nn.Module, data_dir: Path) -> bool:
    """Say whether a step makes no gradient for some parameter.

    A network that wants values cannot be asked, and is taken to use all of them.
    """
    blank = catalogue.find(spec.data, reading_of(spec, data_dir)).blank(2)
    try:
        return bool(unused_parameters(model, blank))
    except Exception:  # whatever somebody's network raises where tensors have no values
        return False


def unused_parameters(model: nn.Module, blank: torch.Tensor) -> list[str]:
    """Name the parameters that are to be trained and get no gradient in a step."""
    step = _Step(model)
    weights = {name: _shape_of(each) for name, each in step.named_parameters()}
    buffers = {name: _shape_of(each) for name, each in step.named_buffers()}
    training = [module for module in model.modules() if module.training]
    model.train()
    try:
        with eagerly(), torch.enable_grad(), torch.random.fork_rng(), torch.device("meta"):
            torch.func.functional_call(step, weights | buffers, (blank.to("meta"),))
    finally:
        model.eval()
        for module in training:
            module.training = True
    prefix = "network."
    return [
        name.removeprefix(prefix)
        for name, weight in weights.items()
        if weight.requires_grad and weight.grad is None
    ]


class _Step(nn.Module):
    """Forward and backward within one call: what is recomputed has no values either."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, samples: torch.Tensor) -> None:
        self.network(samples).sum().backward()


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("meta").requires_grad_(tensor.requires_grad)
