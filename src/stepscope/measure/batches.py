"""How many samples and bytes somebody's batch has, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch


def samples_of(batch: Any) -> int | None:
    """Count the samples of a batch: the length of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    graphs = getattr(batch, "num_graphs", None)
    if isinstance(graphs, int):
        return graphs
    if isinstance(batch, list | tuple) and len(batch) == 2 and _is_a_description_each(*batch):
        return len(batch[0])
    for part in _parts(batch):
        samples = samples_of(part)
        if samples is not None:
            return samples
    return None


def _is_a_description_each(images: Any, targets: Any) -> bool:
    """Say whether there is a mapping for each image, as detectors have: images differ in size."""
    both = isinstance(images, list | tuple) and isinstance(targets, list | tuple)
    return both and len(images) == len(targets) > 0 and isinstance(targets[0], Mapping)


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
