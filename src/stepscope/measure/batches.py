"""How many samples somebody's batch has, whatever it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def samples_of(batch: Any) -> int | None:
    """Count the samples of a batch: the length of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return length_of(batch) if batch.dim() else 1
    parts: Any = ()
    if type(batch) is list or type(batch) is tuple:  # most are, and nothing else has to be asked
        parts = batch
    else:
        graphs = getattr(batch, "num_graphs", None)
        if isinstance(graphs, int):
            return graphs
        if isinstance(batch, Mapping):
            parts = batch.values()
        elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
            parts = batch
    for part in parts:
        samples = samples_of(part)
        if samples is not None:
            return samples
    return None


def length_of(tensor: torch.Tensor) -> int:
    """Return a tensor's length, which has a dimension. `len` is a Python function of torch's."""
    return tensor.size(0) if type(tensor) is torch.Tensor else len(tensor)
