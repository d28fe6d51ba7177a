"""A delay made on purpose: it is waited for, not worked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

from stepscope.data.loaders.artificial_delay import DelayedDataset
from stepscope.data.sample_order import BatchKey
from stepscope.meter.batch_timing import TimedDataset

DELAY_S = 0.0005


class Quick(Dataset[Any]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, key: BatchKey) -> list[int]:
        return list(key.indices)


@pytest.mark.parametrize("samples", [1, 40])
def test_a_batch_comes_later_by_the_delay_of_all_its_samples(samples: int) -> None:
    delayed = DelayedDataset(Quick(), DELAY_S)
    batch, timing = TimedDataset(delayed)[BatchKey(1, np.arange(samples))]
    assert batch == list(range(samples))
    assert timing.wall_ns >= samples * DELAY_S * 1e9
    assert len(delayed) == 7


def test_a_delay_takes_no_cpu_time() -> None:
    _, timing = TimedDataset(DelayedDataset(Quick(), DELAY_S))[BatchKey(1, np.arange(40))]
    assert timing.cpu_ns < timing.wall_ns / 2
