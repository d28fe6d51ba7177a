"""The hooks of a trace around some code of a test, and data for it to work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.data import TensorDataset

from stepscope.trace import torch_hooks
from stepscope.trace.detect import events as e
from stepscope.trace.event_buffer import EventBuffer

NAMES = {value: name for name, value in vars(e).items() if name.isupper()}


@contextmanager
def watched() -> Iterator[EventBuffer]:
    buffer = EventBuffer()
    patches = torch_hooks.install(buffer)
    try:
        yield buffer
    finally:
        patches.undo()


def kinds(buffer: EventBuffer) -> Counter[str]:
    return Counter(NAMES[kind] for kind, *_ in buffer.events)


def data(samples: int = 12) -> TensorDataset:
    images = torch.arange(samples * 4, dtype=torch.float32).reshape(samples, 4) / 50
    return TensorDataset(images, torch.arange(samples) % 3)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
