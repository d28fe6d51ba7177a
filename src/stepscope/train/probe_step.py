"""Probe steps: a forward and backward pass that leave the state of the training unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from stepscope.data.dataset import DataSet
from stepscope.models.model_summary import eagerly
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


@contextlib.contextmanager
def train_mode(model: nn.Module) -> Iterator[None]:
    """Put all modules into training mode; restore the mode of each at the end."""
    training = [module for module in model.modules() if module.training]
    model.train()
    try:
        yield
    finally:
        model.eval()
        for module in training:
            module.training = True


class MetaStep:
    """A training step on torch's `meta` device, which has shapes and no values.

    Forward and backward run in one call, so that recomputed activations are on `meta` too.
    """

    def __init__(
        self,
        network: nn.Module,
        sample: torch.Tensor,
        samples: int,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self._step = _WholeStep(network)
        named = [*self._step.named_parameters(), *self._step.named_buffers()]
        self.tensors = {
            name: each.detach().to("meta").requires_grad_(each.requires_grad)
            for name, each in named
        }
        images = sample[:1].to("meta").expand(samples, *sample.shape[1:])
        labels = torch.empty(samples, dtype=torch.long, device="meta")
        self.batch = (images.contiguous(memory_format=memory_format), labels)

    def take(self, mark: Mark) -> None:
        """Run forward and backward; call `mark` at the end of each."""
        with torch.device("meta"):
            torch.func.functional_call(self._step, self.tensors, (*self.batch, mark))


class _WholeStep(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor, labels: torch.Tensor, mark: Mark) -> None:
        loss = F.cross_entropy(self.network(images), labels)
        mark(FORWARD)
        loss.backward()
        mark(BACKWARD)
