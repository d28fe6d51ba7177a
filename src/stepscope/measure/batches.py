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
    if isinstance(batch, list | tuple) and _is_a_mapping_each(batch):
        return len(batch)
    if isinstance(batch, list | tuple) and len(batch) == 2 and _is_one_each(*batch):
        return len(batch[0])
    for part in _parts(batch):
        samples = samples_of(part)
        if samples is not None:
            return samples
    return None


def _is_a_mapping_each(batch: Sequence[Any]) -> bool:
    """Say whether every sample is a mapping of its own, as some detectors have them.

    A batch may begin with a mapping of all samples too: its tensors are as long as each other.
    """
    if not batch or not isinstance(batch[0], Mapping):
        return False
    if not all(isinstance(each, Mapping) and each.keys() == batch[0].keys() for each in batch):
        return False
    tensors = [value for value in batch[0].values() if isinstance(value, torch.Tensor)]
    lengths = {len(value) if value.dim() else 0 for value in tensors}
    is_of_one = any(isinstance(value, int | float | str) for value in batch[0].values())
    return is_of_one or len(tensors) < 2 or len(lengths) > 1


def _is_one_each(images: Any, targets: Any) -> bool:
    """Say whether there is a target for each image, as detectors have: images differ in size.

    Targets are mappings, or both are as `zip(*samples)` makes them, which torch's own collate never
    does: tensors of one kind.
    """
    both = isinstance(images, list | tuple) and isinstance(targets, list | tuple)
    if not both or len(images) != len(targets) or not len(images):
        return False
    if isinstance(targets[0], Mapping):
        return True
    zipped = type(images) is tuple and type(targets) is tuple
    return zipped and all(_is_alike(image, images[0]) for image in images)


def _is_alike(one: Any, other: Any) -> bool:
    both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return both and (one.dim(), one.dtype) == (other.dim(), other.dtype)


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
