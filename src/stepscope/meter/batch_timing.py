"""Load times of batches, measured where they are made and sent along with them.

The training loop sees the wait for a batch (`data_s`). The work (`load_s`, `load_cpu_s`) happens in
the process that runs the data set. `TimedDataset` wraps any map-style data set, so that each item
comes with its load time, through workers of every start method.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, get_worker_info

from stepscope.meter.clock import now_ns, own_cpu_ns, worker_cpu_ns
from stepscope.meter.step_rows import LoadTiming


class TimedDataset(Dataset[tuple[Any, LoadTiming]]):
    """Return each item of a data set together with its load time."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, key: Any) -> tuple[Any, LoadTiming]:
        info = get_worker_info()
        cpu_ns = own_cpu_ns if info is None else worker_cpu_ns
        cpu_start, start = cpu_ns(), now_ns()
        item = self.dataset[key]
        wall, cpu = now_ns() - start, cpu_ns() - cpu_start
        return item, LoadTiming(-1 if info is None else info.id, start, wall, cpu)
