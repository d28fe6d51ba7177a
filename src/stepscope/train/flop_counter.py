"""Count the floating-point operations of a training step, on `meta`, after the training."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from stepscope.data import dataset_registry
from stepscope.models.model_summary import eagerly, in_mode
from stepscope.models.step_flops import NotCounted, StepWork, count_work
from stepscope.models.step_tensors import BACKWARD, FORWARD, Mark
from stepscope.records.types import StepFlops
from stepscope.settings import RunSpec
from stepscope.train.device import memory_format_of
from stepscope.train.source_settings import data_source_of

COUNTED_BY = "torch's FlopCounterMode: a multiply and an add are two"


def flops_of_step(
    spec: RunSpec, model: nn.Module, data_dir: Path
) -> tuple[StepFlops | None, str | None]:
    """Return the operations and bytes of a step of full batches, or None and the reason."""
    if spec.data == "text" and spec.source != "synthetic":
        return None, "the length of texts, and so the work, differs from step to step"
    try:
        sample = dataset_registry.find(spec.data, data_source_of(spec, data_dir)).blank(1)
        work = count_step(model, sample, spec.batch_size, memory_format_of(spec))
    except NotCounted as unknown:
        return None, f"the operations of {unknown} are not known"
    except Exception as error:  # the network may need values, or the data may be gone
        first_line = str(error).strip().partition("\n")[0]
        return None, f"a step on the meta device failed: {type(error).__name__}: {first_line}"
    forward, backward = work.forward, work.backward
    return {
        "per_sample": (forward.flop + backward.flop) / spec.batch_size,
        "forward": forward.flop * spec.accumulate,
        "backward": backward.flop * spec.accumulate,
        "counted": COUNTED_BY,
        "estimated_bytes": {
            "forward": forward.moved_bytes * spec.accumulate,
            "backward": backward.moved_bytes * spec.accumulate,
        },
    }, None


def count_step(
    model: nn.Module, sample: torch.Tensor, samples: int, memory_format: torch.memory_format
) -> StepWork:
    """Count forward and backward of a batch of `samples` samples shaped like `sample`."""
    step = _WholeStep(model)
    tensors = {
        name: each.detach().to("meta").requires_grad_(each.requires_grad)
        for name, each in (*step.named_parameters(), *step.named_buffers())
    }
    images = sample[:1].to("meta").expand(samples, *sample.shape[1:])
    images = images.contiguous(memory_format=memory_format)
    labels = torch.empty(samples, dtype=torch.long, device="meta")

    def take(mark: Mark) -> None:
        with torch.device("meta"):
            torch.func.functional_call(step, tensors, (images, labels, mark))

    with in_mode(model, training=True), eagerly(), torch.enable_grad():
        return count_work(take, tensors.values(), (images, labels))


class _WholeStep(nn.Module):
    """Forward and backward in one call, so that recomputed activations are on `meta` too."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor, labels: torch.Tensor, mark: Mark) -> None:
        loss = F.cross_entropy(self.network(images), labels)
        mark(FORWARD)
        loss.backward()
        mark(BACKWARD)
