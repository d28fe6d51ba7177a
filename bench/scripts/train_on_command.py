"""A plain training script that trains a block of steps for each line that it reads.

It is the same for all tools; `--tool` adds the lines that a tool asks for in one's own code.
"""

from __future__ import annotations

import argparse
import contextlib
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from stepscope.models import registry


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--tool", choices=["none", "traceml", "profiler"], default="none")
    parser.add_argument("--commands", required=True)
    parser.add_argument("--answers", required=True)
    args = parser.parse_args()

    torch.manual_seed(0)
    samples = args.batch_size * args.steps
    data = TensorDataset(torch.randn(samples, 3, 32, 32), torch.randint(0, 10, (samples,)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    model = registry.build(args.model, classes=10, norm="batch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    device = torch.device("cpu")
    around_step = contextlib.nullcontext
    around_block = contextlib.nullcontext
    if args.tool == "traceml":
        import traceml  # type: ignore[import-not-found]

        traceml.init(mode="auto")
        around_step = lambda: traceml.trace_step(model)  # noqa: E731
    if args.tool == "profiler":
        activities = [torch.profiler.ProfilerActivity.CPU]
        around_block = lambda: torch.profiler.profile(activities=activities)  # noqa: E731

    with open(args.answers, "w", buffering=1) as answers, open(args.commands) as commands:  # noqa: PTH123
        for _ in commands:
            with around_block():
                start = time.perf_counter()
                for images, labels in loader:
                    with around_step():
                        images, labels = images.to(device), labels.to(device)
                        optimizer.zero_grad()
                        loss = F.cross_entropy(model(images), labels)
                        loss.backward()
                        optimizer.step()
                took_s = time.perf_counter() - start
            answers.write(f"{took_s}\n")


if __name__ == "__main__":
    main()
