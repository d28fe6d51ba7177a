"""What single settings of a training bring: the factors that findings on computation assume.

Each case times a step with and without a setting, alternating. Run all, or some:
`bench/setting_gains.py fused channels_last`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from _alternate import alternate
from torch import nn, optim

from stepscope.models import registry

ROUNDS = 9
Step = Callable[[], object]
Case = tuple[str, Step, Step]


def tensors_of(count: int, size: int) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.randn(size)) for _ in range(count)]
    for each in made:
        each.grad = torch.randn(size) * 1e-3
    return made


def fused() -> list[Case]:
    """The update tensor by tensor, and in one kernel."""
    cases = []
    for make in (optim.SGD, optim.AdamW):
        more = {"momentum": 0.9} if make is optim.SGD else {}
        for count, size in ((10, 1_000), (400, 1_600), (60, 180_000), (400, 60_000)):
            each, all_at_once = (
                make(tensors_of(count, size), lr=1e-3, fused=flag, **more) for flag in (False, True)
            )
            name = f"{make.__name__}, {count} tensors of {size:,}"
            cases.append((name, each.step, all_at_once.step))
    return cases


def own_update() -> list[Case]:
    """An update that a script writes itself, in a loop over tensors, and that of torch."""
    cases = []
    for count, size in ((100, 1_000), (400, 1_000), (60, 180_000)):
        weights = tensors_of(count, size)
        moments = [(torch.zeros(size), torch.zeros(size)) for _ in weights]

        def update(weights: list[nn.Parameter] = weights, moments: list = moments) -> None:
            with torch.no_grad():
                for weight, (first, second) in zip(weights, moments, strict=True):
                    first.copy_(0.9 * first + 0.1 * weight.grad)
                    second.copy_(0.999 * second + 0.001 * weight.grad * weight.grad)
                    weight.sub_(1e-3 * first / (torch.sqrt(second) + 1e-8))

        fused = optim.Adam(tensors_of(count, size), lr=1e-3, fused=True)
        cases.append((f"Adam, {count} tensors of {size:,}", update, fused.step))
    return cases


def small_network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(width * 16, 10),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "3 convolutions of 24": lambda: small_network(24),
    "3 convolutions of 96": lambda: small_network(96),
    "ResNet-18": lambda: registry.build("resnet18", classes=10),
    "MobileNetV2": lambda: registry.build("mobilenetv2", classes=10),
}


def training(
    build: Callable[[], nn.Module],
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
    threads: int | None = None,
    detects: bool = False,
) -> Step:
    torch.manual_seed(0)
    model = build().to(dtype, memory_format=memory_format)
    images = torch.rand(32, 3, 32, 32, dtype=dtype).contiguous(memory_format=memory_format)
    labels = torch.randint(0, 10, (32,))

    def step() -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        with torch.autograd.set_detect_anomaly(True) if detects else nullcontext():
            F.cross_entropy(model(images), labels).backward()
            model.zero_grad()

    return step


def evaluation(build: Callable[[], nn.Module], grad: bool) -> Step:
    model, images = build().eval(), torch.rand(64, 3, 32, 32)

    def step() -> None:
        with torch.set_grad_enabled(grad):
            model(images).argmax(1).sum().item()

    return step


def channels_last() -> list[Case]:
    """Contiguous convolutions, and channels_last."""
    return [
        (name, training(build), training(build, memory_format=torch.channels_last))
        for name, build in NETWORKS.items()
    ]


def single_precision() -> list[Case]:
    """float64 and float32."""
    return [
        (name, training(build, torch.float64), training(build)) for name, build in NETWORKS.items()
    ]


def threads() -> list[Case]:
    """Many more threads than CPUs, and as many."""
    usable = len(os.sched_getaffinity(0))
    return [
        (
            f"{name}, {factor} times",
            training(build, threads=factor * usable),
            training(build, threads=usable),
        )
        for factor in (2, 8)
        for name, build in NETWORKS.items()
    ]


def no_anomaly_detection() -> list[Case]:
    """Anomaly detection on, and off."""
    return [
        (name, training(build, detects=True), training(build)) for name, build in NETWORKS.items()
    ]


def no_grad() -> list[Case]:
    """An evaluation with gradients, and without."""
    return [
        (name, evaluation(build, True), evaluation(build, False))
        for name, build in NETWORKS.items()
    ]


CASES = {
    each.__name__: each
    for each in (
        fused,
        own_update,
        channels_last,
        single_precision,
        threads,
        no_anomaly_detection,
        no_grad,
    )
}


def main() -> int:
    for name in sys.argv[1:] or CASES:
        for what, without, with_setting in CASES[name]():
            print(
                f"{name}: {what}: {alternate(without, with_setting, ROUNDS).ratio:.2f}", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
