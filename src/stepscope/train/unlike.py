"""Where processes of one training are not alike: to one another, or to a single process."""

from __future__ import annotations

import json
from typing import Any

from torch import nn
from torch._C._distributed_c10d import Store
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from stepscope.errors import RequestError


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
