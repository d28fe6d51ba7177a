"""torch's DataLoader, set up to load whole batches by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from stepscope.data.sample_order import BatchKey


def make_loader(
    dataset: Dataset[Any],
    keys: Iterable[BatchKey],
    *,
    workers: int,
    prefetch: int,
    persistent_workers: bool,
    pin_memory: bool,
    on_worker_start: Callable[[int], None] | None = None,
) -> DataLoader[Any]:
    """Return a loader that yields `dataset[key]` for each of `keys`."""
    return DataLoader(
        dataset,
        batch_size=None,  # a key names a whole batch: no collation
        collate_fn=_as_it_is,  # and no conversion, which would visit every part of it
        sampler=keys,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        persistent_workers=persistent_workers and workers > 0,
        pin_memory=pin_memory,
        worker_init_fn=on_worker_start,
        # A separate generator: the loader draws a seed each epoch, which would shift the random
        # numbers of the training (dropout) if it came from torch's global generator.
        generator=torch.Generator(),
    )


def _as_it_is(item: Any) -> Any:
    return item
