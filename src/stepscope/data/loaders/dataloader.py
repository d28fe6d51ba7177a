"""The loader: torch's DataLoader, told to make whole batches by key."""

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
    """Make a loader whose items are what `dataset[key]` gives for each of `keys`."""
    return DataLoader(
        dataset,
        batch_size=None,  # a key names a whole batch; there is nothing left to collate,
        collate_fn=_as_it_is,  # nor to convert, for which torch would look at every part of it
        sampler=keys,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        persistent_workers=persistent_workers and workers > 0,
        pin_memory=pin_memory,
        worker_init_fn=on_worker_start,
        # Its own generator: a loader draws a seed each epoch, and from torch's global one that
        # would shift the training's random numbers (dropout).
        generator=torch.Generator(),
    )


def _as_it_is(item: Any) -> Any:
    return item
