"""Batches that are in memory already: one of random images and labels, handed over again and again.

Nothing is read, chosen, augmented or copied, so a training on them goes as fast as its network and
its device let it. What it learns means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from stepscope.data.image_transforms import Batch
from stepscope.data.sample_order import BatchKey, EpochOrder


class SyntheticBatches(Dataset[Batch]):
    """Give as many samples of the one batch as a `BatchKey` names, whichever those are."""

    def __init__(
        self,
        blank: torch.Tensor,
        classes: int,
        seed: int,
        *,
        pin_memory: bool = False,
    ) -> None:
        # Its own generator: torch's global one makes the weights, which stay as they are.
        random = torch.Generator().manual_seed(seed)
        inputs = blank
        if blank.is_floating_point():  # tokens are taken as they are: any is as good as another
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
    """Hand over the batches of `order` as they are: no workers, no queue, no copy."""

    def __init__(self, dataset: Dataset[Any], order: EpochOrder) -> None:
        self._dataset, self._order = dataset, order

    def __iter__(self) -> Iterator[Any]:
        return map(self._dataset.__getitem__, self._order)

    def close(self) -> None:
        """Let go of nothing: there is no worker to end."""
