"""The default ResNet-18 step on a CPU against the plain contiguous one."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from _alternate import alternate, report

from stepscope.models import registry
from stepscope.settings.load_settings import validate
from stepscope.train.device import memory_format_of, resolve
from stepscope.train.optimizers import make_optimizer

BATCH = 32
ROUNDS = 15
LEAST = 1.3


def stepper(memory_format: str):
    spec = resolve(validate({"model": "resnet18", "device": "cpu", "memory_format": memory_format}))
    layout = memory_format_of(spec)
    torch.manual_seed(0)
    model = registry.build("resnet18", classes=10).to(memory_format=layout)
    optimizer = make_optimizer(spec, model.parameters())
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))

    def step() -> None:
        F.cross_entropy(model(images.to(memory_format=layout)), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> int:
    compared = alternate(stepper("contiguous"), stepper("auto"), ROUNDS)
    return report(
        f"contiguous step / default step, ResNet-18, batch {BATCH}",
        compared,
        f"at least {LEAST}",
        compared.ratio >= LEAST,
    )


if __name__ == "__main__":
    sys.exit(main())
