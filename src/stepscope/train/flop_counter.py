"""Count the floating-point operations of a training step, after the training.

The step runs on torch's `meta` device, whose tensors have shapes and no values. It computes and
allocates nothing, and changes no weight, statistic, gradient or random state. It still runs after
the last step, when nothing is measured any more.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from stepscope.data import dataset_registry
from stepscope.models.model_summary import eagerly
from stepscope.models.step_flops import NotCounted, StepWork, count_work
from stepscope.models.step_tensors import Mark
from stepscope.records.types import StepFlops
from stepscope.settings import RunSpec
from stepscope.train.device import memory_format_of
from stepscope.train.probe_step import WholeStep, meta_copy, train_mode
from stepscope.train.source_settings import data_source_of

COUNTED_BY = "torch's FlopCounterMode: a multiply and an add are two"


def flops_of_step(
    spec: RunSpec, model: nn.Module, data_dir: Path
) -> tuple[StepFlops | None, str | None]:
    """Return the operations and bytes of a step of full batches, or None and the reason."""
    if spec.data == "text" and spec.source != "synthetic":
        return None, "texts of a batch are as long as its longest, so that no step is like another"
    try:
        sample = dataset_registry.find(spec.data, data_source_of(spec, data_dir)).blank(1)
        work = count_step(model, sample, spec.batch_size, memory_format_of(spec))
    except NotCounted as unknown:
        return None, f"how often {unknown} multiplies is not known"
    except Exception as error:  # the network may need values, or the data may be gone
        first_line = str(error).strip().partition("\n")[0]
        return None, f"a step without values failed: {type(error).__name__}: {first_line}"
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
    """Count forward and backward of a batch of `samples` samples shaped like `sample`.

    Raises:
        NotCounted: the network uses an operation that has no known count.
    """
    step = WholeStep(model)
    weights = {name: meta_copy(each) for name, each in step.named_parameters()}
    weights |= {name: meta_copy(each) for name, each in step.named_buffers()}
    images = (
        sample.to("meta").expand(samples, *sample.shape[1:]).contiguous(memory_format=memory_format)
    )
    labels = torch.empty(samples, dtype=torch.long, device="meta")

    def take(mark: Mark) -> None:
        with torch.device("meta"):
            torch.func.functional_call(step, weights, (images, labels, mark))

    with train_mode(model), eagerly(), torch.enable_grad():
        return count_work(take, weights.values(), (images, labels))
