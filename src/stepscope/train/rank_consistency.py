"""Where processes of one training are not alike: to one another, or to a single process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import Store
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from stepscope.data import dataset_registry
from stepscope.errors import RequestError
from stepscope.models.model_summary import eagerly
from stepscope.settings import RunSpec
from stepscope.train.source_settings import data_source_of


def tell_each_other(
    store: Store, rank: int, world: int, mine: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return what every rank says, through the store: a group forms only of those that agree."""
    store.set(f"asked of {rank}", json.dumps(mine))
    return [json.loads(store.get(f"asked of {each}")) for each in range(world)]


def refuse_disagreement(said: list[dict[str, Any]], what: str, advice: str) -> None:
    """Raise where ranks say different things; the message names each.

    Raises:
        RequestError: they do.
    """
    first = said[0]
    complaints = [
        f"{name} is {theirs.get(name)!r} for rank {rank} and {first.get(name)!r} for rank 0"
        for rank, theirs in enumerate(said)
        for name in {**first, **theirs}
        if theirs.get(name) != first.get(name)
    ]
    if complaints:
        raise RequestError(f"the ranks {what}: {'; '.join(complaints)}. {advice}.")


def differences_from_one_process(model: nn.Module) -> list[str]:
    """Say why losses are not those that one process would have, where they are not."""
    found = []
    if any(
        isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm)
        for layer in model.modules()
    ):
        found.append("batch norm takes the statistics of a rank's part of the batch, not of all")
    if any(_drops_out(layer) for layer in model.modules()):
        found.append("dropout is drawn by each rank for itself")
    return found


def _drops_out(layer: nn.Module) -> bool:
    if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
        return layer.dropout > 0
    return isinstance(layer, _DropoutNd) and layer.p > 0


# --- Which parameters of a network take no part in its steps?


def has_unused_parameters(spec: RunSpec, model: nn.Module, data_dir: Path) -> bool:
    """Say whether a step makes no gradient for some parameter.

    A network that wants values cannot be asked, and is taken to use all of them.
    """
    blank = dataset_registry.find(spec.data, data_source_of(spec, data_dir)).blank(2)
    try:
        return bool(unused_parameters(model, blank))
    except Exception:  # whatever somebody's network raises where tensors have no values
        return False


def unused_parameters(model: nn.Module, blank: torch.Tensor) -> list[str]:
    """Name the parameters that are to be trained and get no gradient in a step."""
    step = _ProbedStep(model)
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


class _ProbedStep(nn.Module):
    """Forward and backward within one call: what is recomputed has no values either."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, samples: torch.Tensor) -> None:
        self.network(samples).sum().backward()


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("meta").requires_grad_(tensor.requires_grad)
