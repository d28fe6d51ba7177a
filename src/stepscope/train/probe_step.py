"""Probe steps: a forward and backward pass that leave the state of the training unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from stepscope.data.dataset import DataSet
from stepscope.models.model_summary import eagerly, in_mode
from stepscope.models.step_tensors import BACKWARD, FORWARD, Mark
from stepscope.settings import RunSpec
from stepscope.train.device import autocast_of, memory_format_of


@dataclass(frozen=True)
class ProbeStep:
    """The forward and backward pass of a training step, on blank samples."""

    spec: RunSpec
    model: nn.Module
    dataset: DataSet
    device: torch.device

    def take(self, samples: int) -> None:
        """Run forward and backward on a blank batch."""
        images, labels = self.batch(samples)
        self.take_with(images, labels, lambda phase: None)

    def batch(self, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a blank batch on the device, in the memory format of the training."""
        images = self.dataset.blank(samples).to(self.device)
        images = images.contiguous(memory_format=memory_format_of(self.spec))
        return images, torch.arange(samples, device=self.device) % self.dataset.classes

    def take_with(self, images: torch.Tensor, labels: torch.Tensor, mark: Mark) -> None:
        """Run forward and backward on a batch; call `mark` at the end of each."""
        with autocast_of(self.spec, self.device):
            outputs = self.model(images)
            loss = F.cross_entropy(outputs, labels)
        mark(FORWARD)
        loss.backward()
        mark(BACKWARD)


@contextlib.contextmanager
def training_state_restored(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore the buffers, the gradients and the random state that a step changes."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = [device] if device.type == "cuda" else []
    try:
        with in_mode(model, training=True), torch.random.fork_rng(devices=devices), eagerly():
            yield
    finally:
        model.zero_grad()
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
