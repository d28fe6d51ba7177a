"""What the hooks of `stepscope trace` cost: the same loop, in one process, with and without them.

LeNet, batch 8, and ResNet-18, batch 16. Both sides share model, loader and process, so that nothing
but the hooks differs. Settling (making sense of what was noted, formatting, writing) is timed too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from _alternate import alternate, report
from torch.utils.data import DataLoader, TensorDataset

from stepscope.measure import hooks
from stepscope.measure.clock import now_ns
from stepscope.measure.tracer import Tracer
from stepscope.models import registry
from stepscope.records import folder

# model, batch, steps of a block, rounds, wanted
SETTINGS = [("lenet", 8, 50, 200, 1.02), ("resnet18", 16, 2, 25, 1.005)]


def compare(model_name: str, batch: int, steps: int, rounds: int, most: float) -> int:
    torch.manual_seed(0)
    samples = batch * steps
    data = TensorDataset(torch.randn(samples, 3, 32, 32), torch.randint(0, 10, (samples,)))
    loader = DataLoader(data, batch_size=batch, shuffle=True)
    model = registry.build(model_name, classes=10, norm="batch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    device = torch.device("cpu")

    def train() -> None:
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()

    with tempfile.TemporaryDirectory() as temporary:
        made = folder.create(Path(temporary), "bench", "trace", {})
        tracer = Tracer(made.path, now_ns())
        tracer.start()

        def watched() -> None:
            train()

        def hooks_on() -> None:
            tracer._patches = hooks.install(tracer._book)
            train()  # caches of what was patched are warm again after it

        def hooks_off() -> None:
            tracer._patches.undo()
            train()

        hooks_off()
        compared = alternate(watched, train, rounds, before_first=hooks_on, before_second=hooks_off)
        tracer._patches.undo()
    what = f"with hooks / without, {model_name}, batch {batch}"
    return report(what, compared, f"at most {most}", compared.ratio <= most)


def main() -> int:
    return max(compare(*setting) for setting in SETTINGS)


if __name__ == "__main__":
    sys.exit(main())
