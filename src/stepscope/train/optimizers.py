"""Build the optimiser, the learning-rate schedule and the loss scaler of a spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from stepscope.settings import RunSpec

_OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "adadelta": optim.Adadelta,
    "rmsprop": optim.RMSprop,
    "adam": optim.Adam,
    "adamw": optim.AdamW,
}


def make_optimizer(spec: RunSpec, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Return the optimiser. Only sgd and rmsprop use momentum."""
    options = {"lr": spec.lr, "weight_decay": spec.weight_decay}
    if spec.optimizer in ("sgd", "rmsprop"):
        options["momentum"] = spec.momentum
    if spec.optimizer == "sgd":
        options["nesterov"] = spec.nesterov
    return _OPTIMIZERS[spec.optimizer](parameters, **options)


def make_schedule(
    spec: RunSpec, optimizer: optim.Optimizer, total_steps: int
) -> LRScheduler | None:
    """Return the schedule of the whole run, to be stepped after every optimiser step.

    A constant rate has none: torch's constant schedule costs 20 µs a step.
    """
    match spec.schedule:
        case "constant":
            return None
        case "cosine":
            return CosineAnnealingLR(optimizer, T_max=total_steps)
        case "one-cycle":
            # cycle_momentum=False keeps the momentum of the spec. One more step than the run has:
            # the schedule is also stepped after the last step.
            return OneCycleLR(
                optimizer, max_lr=spec.lr, total_steps=total_steps + 1, cycle_momentum=False
            )


def make_scaler(spec: RunSpec, device: torch.device) -> torch.amp.GradScaler | None:
    """Return a loss scaler for fp16; other precisions need none."""
    return torch.amp.GradScaler(device.type) if spec.precision == "fp16" else None
