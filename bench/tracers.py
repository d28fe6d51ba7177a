"""What it costs to watch a script, for `stepscope trace`, torch.profiler and TraceML.

One process trains a short block of steps at a time, each under another tool or under none, in an
order that changes every round: model, loader and memory are the same, only the tool differs. What
a tool does before and after a block (putting hooks on, sorting a trace) is not timed, nor are the
first steps after it: when a class changes, an instruction that Python had made fast for it fails
some fifty times before it is made anew. In a real run hooks are put on once. What a tool does while
the block trains is timed, settling and writing included. A second bare block in every round shows
what two equal things differ by.

Beside the median of each round's ratio stands a second answer: the tenth of a tool's blocks that
was least disturbed, against the same tenth of the bare ones. On a noisy machine it varies less.

Give `--traceml PATH` the `traceml` command of an environment that has traceml-ai and this torch;
it is no dependency of ours. It takes turns with bare blocks in a process that `traceml run` made,
so that what it does in the background slows both: its real cost is what is printed, or more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stepscope.hardware.host import cpu_model
from stepscope.measure import hooks
from stepscope.measure.clock import now_ns
from stepscope.measure.tracer import Tracer
from stepscope.models import registry
from stepscope.records import folder
from stepscope.stats import median, quantile

AroundStep = Callable[[], AbstractContextManager[object]]
Block = Callable[[], float]  # trains a block of steps, returns the seconds it took


@dataclass(frozen=True)
class Setting:
    """What is trained, how often, and what a watched step may take against a bare one."""

    model: str
    batch: int
    first_steps: int
    steps: int
    rounds: int
    most: float


SETTINGS = [
    Setting("lenet", 8, first_steps=60, steps=100, rounds=600, most=1.02),
    Setting("resnet18", 16, first_steps=1, steps=2, rounds=120, most=1.005),
]


class Training:
    """A plain training loop."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(0)
        self.first_steps = setting.first_steps
        samples = setting.batch * (setting.first_steps + setting.steps)
        data = TensorDataset(torch.randn(samples, 3, 32, 32), torch.randint(0, 10, (samples,)))
        self.loader = DataLoader(data, batch_size=setting.batch, shuffle=True)
        self.model: nn.Module = registry.build(setting.model, classes=10, norm="batch")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def block(self, around_step: AroundStep = contextlib.nullcontext) -> float:
        """Train one block; return how long it took without its first steps.

        Each step is inside a context, as a tool asks for it; the empty one takes 0.3 us.
        """
        device = torch.device("cpu")
        start = 0.0
        for number, (images, labels) in enumerate(self.loader):
            if number == self.first_steps:
                start = perf_counter()
            with around_step():
                images, labels = images.to(device), labels.to(device)
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(images), labels)
                loss.backward()
                self.optimizer.step()
        return perf_counter() - start


@contextlib.contextmanager
def traced(training: Training) -> Iterator[Block]:
    """Yield a block under the hooks of `stepscope trace`, which are on only while it trains."""
    with tempfile.TemporaryDirectory() as temporary:
        made = folder.create(Path(temporary), "bench", "trace", {})
        tracer = Tracer(made.path, now_ns())
        tracer.start()
        tracer._patches.undo()

        def block() -> float:
            tracer._patches = hooks.install(tracer._book)
            try:
                return training.block()
            finally:
                tracer._patches.undo()

        yield block


def profiled(training: Training) -> float:
    """Train a block under torch.profiler, without memory, shapes or stacks."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return training.block()


def take_turns(blocks: dict[str, Block], rounds: int) -> dict[str, list[float]]:
    """Return, by tool, what its block took in each round; the first three are left out."""
    took: dict[str, list[float]] = {name: [] for name in blocks}
    warm_up = 3
    for number in range(warm_up + rounds):
        order = list(blocks)
        random.shuffle(order)
        for name in order:
            seconds = blocks[name]()
            if number >= warm_up:
                took[name].append(seconds)
    return took


def ours_and_the_profiler(setting: Setting) -> dict[str, list[float]]:
    """Let bare, traced and profiled blocks take turns in this process."""
    training = Training(setting)
    with traced(training) as block:
        blocks: dict[str, Block] = {
            "bare": training.block,
            "bare again": training.block,
            "stepscope trace": block,
            "torch.profiler": lambda: profiled(training),
        }
        return take_turns(blocks, setting.rounds)


def inside_traceml(setting: Setting) -> dict[str, list[float]]:
    """Let bare blocks and TraceML's take turns; this process was started by `traceml run`."""
    import traceml_ai  # type: ignore[import-not-found]

    traceml_ai.init(mode="auto")
    training = Training(setting)
    blocks: dict[str, Block] = {
        "bare": training.block,
        "TraceML": lambda: training.block(lambda: traceml_ai.trace_step(training.model)),
    }
    return take_turns(blocks, setting.rounds)


def run_traceml(command: str, setting: Setting) -> dict[str, list[float]]:
    """Start this file again under `traceml run`; return what it measured."""
    with tempfile.TemporaryDirectory() as temporary:
        answer = Path(temporary) / "answer.json"
        run = [command, "run", "--logs-dir", temporary, "--run-name", "bench", __file__, "--args"]
        arguments = ["--inside-traceml", str(answer), "--only", setting.model]
        paths = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*run, *arguments, "--rounds", str(setting.rounds)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": paths},
        )
        if not answer.exists():
            sys.exit(f"traceml run gave no answer:\n{done.stdout}{done.stderr}")
        measured: dict[str, list[float]] = json.loads(answer.read_text())
        return measured


@dataclass(frozen=True)
class Compared:
    """A tool's blocks against the bare ones: by round, sorted, and where least was disturbed."""

    ratios: list[float]
    undisturbed: float


def compare(took: dict[str, list[float]]) -> dict[str, Compared]:
    """Compare each tool's blocks with the bare ones."""
    bare = took.pop("bare")
    least_bare = quantile(sorted(bare), 0.1)
    return {
        name: Compared(
            sorted(a / b for a, b in zip(each, bare, strict=True)),
            quantile(sorted(each), 0.1) / least_bare,
        )
        for name, each in took.items()
    }


def report(setting: Setting, compared: dict[str, Compared]) -> bool:
    """Print a row a tool; return whether what is wanted was met."""
    print(
        f"{setting.model}, batch {setting.batch}, {setting.rounds} rounds of {setting.steps} "
        "steps: time of a step against the bare loop"
    )
    for name, each in compared.items():
        low, middle, high = (quantile(each.ratios, share) for share in (0.25, 0.5, 0.75))
        spread = f"quartiles {low:.3f} to {high:.3f}, least disturbed {each.undisturbed:.3f}"
        print(f"  {name:16} {middle:.4f}  ({spread})")
    medians = {name: median(each.ratios) for name, each in compared.items()}
    ours = medians["stepscope trace"]
    others = [medians[name] for name in medians.keys() & {"torch.profiler", "TraceML"}]
    met = ours <= setting.most and all(ours < other for other in others)
    answer = "met" if met else "MISSED"
    print(f"  wanted at most {setting.most} and less than the others: {answer}", flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traceml", metavar="PATH", help="the traceml command")
    parser.add_argument("--only", choices=[each.model for each in SETTINGS])
    parser.add_argument("--rounds", type=int, help="instead of the usual number")
    parser.add_argument("--inside-traceml", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    settings = [each for each in SETTINGS if args.only in (None, each.model)]
    if args.rounds:
        settings = [replace(each, rounds=args.rounds) for each in settings]
    if args.inside_traceml:
        args.inside_traceml.write_text(json.dumps(inside_traceml(settings[0])))
        return 0
    met = []
    for setting in settings:
        compared = compare(ours_and_the_profiler(setting))
        if args.traceml:
            compared |= compare(run_traceml(args.traceml, setting))
        met.append(report(setting, compared))
    print(f"  on {cpu_model()}, {os.cpu_count()} CPUs, torch {torch.__version__}")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
