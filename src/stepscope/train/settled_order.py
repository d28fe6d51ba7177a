"""A step before the first, after which several processes add gradients up in one order.

DistributedDataParallel puts gradients together in portions, and after its first step anew, in the
order in which they were ready. A sum of three or more has other last bits in another order. A run
that goes on would have the first order again where the one that was never stopped has the second;
after a small step that changes nothing of the training, both begin with the second.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from stepscope.data import catalogue
from stepscope.spec import RunSpec
from stepscope.train.reading import reading_of
from stepscope.train.small_step import SmallStep, as_it_was

_SAMPLES = 2
_ANY_ORDER_WILL_DO = 2  # a + b is b + a


def settle_order(
    spec: RunSpec, wrapped: nn.Module, data_dir: Path, device: torch.device, processes: int
) -> None:
    """Take the small step, where the order of a sum shows; every process must."""
    if processes <= _ANY_ORDER_WILL_DO:
        return
    dataset = catalogue.find(spec.data, reading_of(spec, data_dir))
    with as_it_was(wrapped, device):
        SmallStep(spec, wrapped, dataset, device).take(_SAMPLES)
