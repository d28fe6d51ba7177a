"""An artificial delay, to simulate a slower pipeline or disk."""

from __future__ import annotations

import time
from typing import Any

from torch.utils.data import Dataset

from stepscope.data.sample_order import BatchKey


class DelayedDataset(Dataset[Any]):
    """Delay the batches of another data set by a time for each sample.

    The process that makes the batch sleeps once: a sleep for each sample would add the wake-up time
    of the system.
    """

    def __init__(self, dataset: Dataset[Any], delay_s: float) -> None:
        """Delay `dataset` by `delay_s` a sample."""
        self._dataset, self._delay_s = dataset, delay_s

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: BatchKey) -> Any:
        time.sleep(self._delay_s * len(key.indices))
        return self._dataset[key]
