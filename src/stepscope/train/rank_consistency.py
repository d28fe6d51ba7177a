"""Differences between the ranks of a training, and between them and a single process."""

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
from stepscope.train.probe_step import meta_copy, train_mode
from stepscope.train.source_settings import data_source_of


def gather_settings(
    store: Store, rank: int, world: int, own: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the settings of all ranks, from the store: the process group does not exist yet."""
    store.set(f"asked of {rank}", json.dumps(own))
    return [json.loads(store.get(f"asked of {each}")) for each in range(world)]


def refuse_disagreement(by_rank: list[dict[str, Any]], what: str, advice: str) -> None:
    """Raise RequestError, which names each difference, if the values of the ranks differ."""
    first = by_rank[0]
    complaints = [
        f"{name} is {theirs.get(name)!r} for rank {rank} and {first.get(name)!r} for rank 0"
        for rank, theirs in enumerate(by_rank)
        for name in {**first, **theirs}
        if theirs.get(name) != first.get(name)
    ]
    if complaints:
        raise RequestError(f"the ranks {what}: {'; '.join(complaints)}. {advice}.")


def differences_from_one_process(model: nn.Module) -> list[str]:
    """List the reasons why losses differ from those of a single process."""
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


# --- Unused parameters


def has_unused_parameters(spec: RunSpec, model: nn.Module, data_dir: Path) -> bool:
    """Return whether some parameter gets no gradient in a step.

    False for a network that cannot run on the `meta` device.
    """
    blank = dataset_registry.find(spec.data, data_source_of(spec, data_dir)).blank(2)
    try:
        return bool(unused_parameters(model, blank))
    except Exception:  # a user's network may raise anything on `meta`
        return False


def unused_parameters(model: nn.Module, blank: torch.Tensor) -> list[str]:
    """List the trainable parameters that get no gradient in a step."""
    step = _ProbedStep(model)
    weights = {name: meta_copy(each) for name, each in step.named_parameters()}
    buffers = {name: meta_copy(each) for name, each in step.named_buffers()}
    with (
        train_mode(model),
        eagerly(),
        torch.enable_grad(),
        torch.random.fork_rng(),
        torch.device("meta"),
    ):
        torch.func.functional_call(step, weights | buffers, (blank.to("meta"),))
    prefix = "network."
    return [
        name.removeprefix(prefix)
        for name, weight in weights.items()
        if weight.requires_grad and weight.grad is None
    ]


class _ProbedStep(nn.Module):
    """Forward and backward in one call, so that recomputed activations are on `meta` too."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, samples: torch.Tensor) -> None:
        self.network(samples).sum().backward()
