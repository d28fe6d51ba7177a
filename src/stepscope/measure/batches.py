"""How many samples and bytes somebody's batch has, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch


def samples_of(batch: Any) -> int | None:
    """Count the samples of a batch: the length of the first tensor in it."""
    if type(batch) is list or type(batch) is tuple:
        # Most batches begin with a tensor: nothing else has to be asked. `size` is torch's C++
        # where `len` is a Python function.
        if batch and type(batch[0]) is torch.Tensor and batch[0].dim():
            return batch[0].size(0)
    elif isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    graphs = getattr(batch, "num_graphs", None)
    if isinstance(graphs, int):
        return graphs
    for part in _parts(batch):
        samples = samples_of(part)
        if samples is not None:
            return samples
    return None


def bytes_of(batch: Any) -> int:
    """Add up the tensors of a batch: what a worker passes on through shared memory."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    return sum(map(bytes_of, _parts(batch)))


def _parts(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return batch
    return ()
