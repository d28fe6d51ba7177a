"""One step of a training with a few blank samples, which leaves the training as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from stepscope.data.dataset_registry import DataSet
from stepscope.models.model_summary import eagerly
from stepscope.models.step_tensors import BACKWARD, FORWARD, Mark
from stepscope.settings import RunSpec
from stepscope.train.device import autocast_of, layout_of


@dataclass(frozen=True)
class SmallStep:
    """What a step of the loop does to a network, but for the optimiser's part."""

    spec: RunSpec
    model: nn.Module
    dataset: DataSet
    device: torch.device

    def take(self, samples: int) -> None:
        """Do forward and backward of a step."""
        images, labels = self.batch(samples)
        self.take_with(images, labels, lambda phase: None)

    def batch(self, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Make a blank batch on the device, in the layout of the training's."""
        images = self.dataset.blank(samples).to(self.device)
        images = images.contiguous(memory_format=layout_of(self.spec))
        return images, torch.arange(samples, device=self.device) % self.dataset.classes

    def take_with(self, images: torch.Tensor, labels: torch.Tensor, mark: Mark) -> None:
        """Do forward and backward of a step, with a batch that stays the caller's.

        `mark` is told where each of them ends.
        """
        with autocast_of(self.spec, self.device):
            outputs = self.model(images)
            loss = F.cross_entropy(outputs, labels)
        mark(FORWARD)
        loss.backward()
        mark(BACKWARD)


@contextlib.contextmanager
def as_it_was(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put back the running statistics and the random numbers that a step changes."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    training = model.training
    model.train()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), eagerly():
            yield
    finally:
        model.train(training)
        model.zero_grad()
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
