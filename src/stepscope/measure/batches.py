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
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], Mapping):
        return len(batch)  # each sample described by its own
    if isinstance(batch, list | tuple) and len(batch) == 2 and _is_one_each(*batch):
        return len(batch[0])
    for part in _parts(batch):
        samples = samples_of(part)
        if samples is not None:
            return samples
    return None


def _is_one_each(images: Any, targets: Any) -> bool:
    """Say whether there is a target for each image, as detectors have: images differ in size.

    Targets are mappings, or both are as `zip(*samples)` makes them: torch's own collate makes lists
    of such.
    """
    both = isinstance(images, list | tuple) and isinstance(targets, list | tuple)
    if not both or len(images) != len(targets) or not len(images):
        return False
    return isinstance(targets[0], Mapping) or (type(images) is tuple and type(targets) is tuple)


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
