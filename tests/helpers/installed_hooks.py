"""The hooks of a trace around some code of a test, and data for it to work on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from stepscope.trace import event_buffer as e
from stepscope.trace import torch_hooks
from stepscope.trace.allreduce_hooks import AllreduceWatch
from stepscope.trace.event_buffer import HookState

# Kinds of events come first; a later constant may have the value of one.
NAMES = {
    value: name
    for name, value in reversed(vars(e).items())
    if name.isupper() and type(value) is int
}


@contextmanager
def watched() -> Iterator[HookState]:
    hooks = HookState(AllreduceWatch())
    patches = torch_hooks.install(hooks)
    try:
        yield hooks
    finally:
        patches.undo()


def events_of(hooks: HookState) -> list[e.Event]:
    """The recorded events, as tuples."""
    fields = iter(hooks.buffer.fields)
    return list(zip(fields, fields, fields, fields, fields, strict=True))


def kinds(hooks: HookState) -> Counter[str]:
    return Counter(NAMES[kind] for kind, *_ in events_of(hooks))


def details(hooks: HookState, wanted: int) -> list[Any]:
    """The details of all events of a kind."""
    return [detail for kind, _, _, detail, _ in events_of(hooks) if kind == wanted]


def data(samples: int = 12) -> TensorDataset:
    images = torch.arange(samples * 4, dtype=torch.float32).reshape(samples, 4) / 50
    return TensorDataset(images, torch.arange(samples) % 3)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
