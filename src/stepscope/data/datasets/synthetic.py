"""Synthetic batches: one batch of random inputs and labels, used again and again.

Nothing is read, shuffled, augmented or copied, so a training runs as fast as its network and device
allow. The accuracy has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from stepscope.data.loaders.dataloader import Batch
from stepscope.data.sample_order import BatchKey, EpochOrder


class SyntheticBatches(Dataset[Batch]):
    """Return as many samples of the one batch as a `BatchKey` has indices."""

    def __init__(
        self,
        blank: torch.Tensor,
        classes: int,
        seed: int,
        *,
        pin_memory: bool = False,
    ) -> None:
        # A separate generator: torch's global one initialises the weights.
        random = torch.Generator().manual_seed(seed)
        inputs = blank
        if blank.is_floating_point():  # any token is as good as another
            inputs = torch.randn(blank.shape, generator=random)
        labels = torch.randint(classes, (len(blank),), generator=random)
        self._batch = (inputs.pin_memory(), labels.pin_memory()) if pin_memory else (inputs, labels)

    def __len__(self) -> int:
        return len(self._batch[1])

    def __getitem__(self, key: BatchKey) -> Batch:
        samples = len(key.indices)
        if samples == len(self):
            return self._batch
        images, labels = self._batch
        return images[:samples], labels[:samples]


class DirectLoader:
    """Yield the batches of `order` without workers, queue or copy."""

    def __init__(self, dataset: Dataset[Any], order: EpochOrder) -> None:
        self._dataset, self._order = dataset, order

    def __iter__(self) -> Iterator[Any]:
        return map(self._dataset.__getitem__, self._order)

    def close(self) -> None:
        """Do nothing: there are no workers."""
