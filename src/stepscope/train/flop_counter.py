"""Count the operations of a training's step, beside the training and after it.

A whole step of the real batch is taken with tensors that have shapes and no values (torch's device
`meta`): nothing is computed, no memory is taken, and weights, statistics, gradients and random
numbers of the network stay as they are. It comes after the last step all the same, when nothing is
measured any more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from stepscope.data import dataset_registry
from stepscope.models.model_summary import eagerly
from stepscope.models.step_flops import NotCounted, StepWork, count_work
from stepscope.models.step_tensors import BACKWARD, FORWARD, Mark
from stepscope.settings import RunSpec
from stepscope.train.device import layout_of
from stepscope.train.source_settings import data_source_of

COUNTED_BY = "torch's FlopCounterMode: a multiply and an add are two"


def flops_of_step(
    spec: RunSpec, model: nn.Module, data_dir: Path
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the work of a step of full batches, or None and the reason why it is unknown."""
    if spec.data == "text" and spec.source != "synthetic":
        return None, "texts of a batch are as long as its longest, so that no step is like another"
    try:
        sample = dataset_registry.find(spec.data, data_source_of(spec, data_dir)).blank(1)
        work = count_step(model, sample, spec.batch_size, layout_of(spec))
    except NotCounted as unknown:
        return None, f"how often {unknown} multiplies is not known"
    except Exception as error:  # a network may want values, and what was read may be gone by now
        first_line = str(error).strip().partition("\n")[0]
        return None, f"a step without values failed: {type(error).__name__}: {first_line}"
    flop = {"forward": work.forward.flop, "backward": work.backward.flop}
    moved = {"forward": work.forward.moved_bytes, "backward": work.backward.moved_bytes}
    return {
        "per_sample": sum(flop.values()) / spec.batch_size,
        **{name: count * spec.accumulate for name, count in flop.items()},
        "counted": COUNTED_BY,
        "estimated_bytes": {name: size * spec.accumulate for name, size in moved.items()},
    }, None


def count_step(
    model: nn.Module, sample: torch.Tensor, samples: int, layout: torch.memory_format
) -> StepWork:
    """Count forward and backward of a batch of samples shaped like the one that is given.

    Raises:
        NotCounted: the network multiplies in a way that nobody has written down.
    """
    step = _CountedStep(model)
    weights = {name: _shape_of(each) for name, each in step.named_parameters()}
    weights |= {name: _shape_of(each) for name, each in step.named_buffers()}
    images = sample.to("meta").expand(samples, *sample.shape[1:]).contiguous(memory_format=layout)
    labels = torch.empty(samples, dtype=torch.long, device="meta")

    def take(mark: Mark) -> None:
        with torch.device("meta"):
            torch.func.functional_call(step, weights, (images, labels, mark))

    training = [module for module in model.modules() if module.training]
    model.train()
    try:
        with eagerly(), torch.enable_grad():
            return count_work(take, weights.values(), (images, labels))
    finally:
        model.eval()
        for module in training:
            module.training = True


class _CountedStep(nn.Module):
    """A step as the loop takes it, within one call: what is recomputed has no values either."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor, labels: torch.Tensor, mark: Mark) -> None:
        loss = F.cross_entropy(self.network(images), labels)
        mark(FORWARD)
        loss.backward()
        mark(BACKWARD)


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("meta").requires_grad_(tensor.requires_grad)
