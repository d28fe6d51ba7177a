"""Optimisers and learning-rate schedules by name, each with exactly what was asked for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from stepscope.settings import RunSpec


def make_optimizer(spec: RunSpec, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """Make the optimiser; momentum goes to those that have one (sgd, rmsprop)."""
    trained = list(parameters)
    lr, decay = spec.lr, spec.weight_decay
    match spec.optimizer:
        case "sgd":
            return optim.SGD(
                trained, lr, momentum=spec.momentum, weight_decay=decay, nesterov=spec.nesterov
            )
        case "adagrad":
            return optim.Adagrad(trained, lr, weight_decay=decay)
        case "adadelta":
            return optim.Adadelta(trained, lr, weight_decay=decay)
        case "rmsprop":
            return optim.RMSprop(trained, lr, momentum=spec.momentum, weight_decay=decay)
        case "adam":
            return optim.Adam(trained, lr, weight_decay=decay)
        case "adamw":
            return optim.AdamW(trained, lr, weight_decay=decay)


def make_schedule(
    spec: RunSpec, optimizer: optim.Optimizer, total_steps: int
) -> LRScheduler | None:
    """Make the schedule over the whole run, to be stepped once every optimiser step.

    A constant rate has none: torch's own constant schedule takes 20 µs a step to change nothing.
    """
    match spec.schedule:
        case "constant":
            return None
        case "cosine":
            return CosineAnnealingLR(optimizer, T_max=total_steps)
        case "one-cycle":
            # The momentum that was asked for stays; torch would cycle it too unless told not to.
            # One more than will be taken: after the last step the schedule is stepped once too.
            return OneCycleLR(
                optimizer, max_lr=spec.lr, total_steps=total_steps + 1, cycle_momentum=False
            )


def make_scaler(spec: RunSpec, device: torch.device) -> torch.amp.GradScaler | None:
    """Make a loss scaler, which only fp16 needs."""
    return torch.amp.GradScaler(device.type) if spec.precision == "fp16" else None
