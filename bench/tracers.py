"""What it costs to watch a script, for `stepscope trace`, torch.profiler and TraceML.

One process trains a short block of steps at a time, each under another tool or under none, in an
order that changes every round: model, loader and memory are the same, only the tool differs. What
a tool does before and after a block (putting hooks on, sorting a trace) is not timed, nor are the
first steps after it: when a class changes, an instruction that Python had made fast for it fails
some fifty times before it is made anew. In a real run hooks are put on once. What a tool does while
the block trains is timed, settling and writing included. A second bare block in every round shows
what two equal things differ by.

There are two answers. The median of each round's ratio of whole blocks is of everything, noise
included. The other is of the twentieth of all steps that was least disturbed, against the same of
the bare ones; what `stepscope trace` does now and then, settling, is measured and added to each of
its steps, what others do now and then is not. Where the machine itself wavers by a quarter, only
the second says anything, and it is the one that is held against what is wanted. Of settling it
takes what the twentieth of all steps took whose settling was least disturbed.

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
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
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
from stepscope.stats import quantile

AroundStep = Callable[[], AbstractContextManager[object]]
Block = Callable[[], list[float]]  # trains a block, returns the seconds that each step took


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
    Setting("lenet", 8, first_steps=60, steps=60, rounds=250, most=1.02),
    Setting("resnet18", 16, first_steps=1, steps=3, rounds=60, most=1.005),
]
UNDISTURBED = 0.05
OURS = "stepscope trace"
OTHERS = {"torch.profiler", "TraceML"}


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

    def block(self, around_step: AroundStep = contextlib.nullcontext) -> list[float]:
        """Train one block; return how long each step took, without the first ones.

        Each step is inside a context, as a tool asks for it; the empty one takes 0.3 us.
        """
        device = torch.device("cpu")
        ends = []
        for images, labels in self.loader:
            with around_step():
                images, labels = images.to(device), labels.to(device)
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(images), labels)
                loss.backward()
                self.optimizer.step()
            ends.append(perf_counter())
        return [end - begin for begin, end in pairwise(ends[self.first_steps - 1 :])]


@dataclass
class Took:
    """The steps of every block of a tool, and what it did beside them for each step, in seconds."""

    blocks: list[list[float]]
    now_and_then: float = 0.0


@dataclass
class Weighed(Tracer):
    """A tracer that keeps, for each step, its part of the settling that it was in."""

    settlings: list[float] = field(default_factory=list)

    def _settle(self) -> None:
        own_ns, steps_before = self.own_ns, self.steps
        super()._settle()
        steps = self.steps - steps_before
        self.settlings += [(self.own_ns - own_ns) * 1e-9 / max(1, steps)] * steps


@contextlib.contextmanager
def traced(training: Training) -> Iterator[tuple[Block, Weighed]]:
    """Yield a block under the hooks of `stepscope trace`, which are on only while it trains."""
    with tempfile.TemporaryDirectory() as temporary:
        made = folder.create(Path(temporary), "bench", "trace", {})
        tracer = Weighed(made.path, now_ns())
        tracer.start()
        tracer._patches.undo()

        def block() -> list[float]:
            tracer._patches = hooks.install(tracer._book)
            try:
                return training.block()
            finally:
                tracer._patches.undo()

        yield block, tracer


def profiled(training: Training) -> list[float]:
    """Train a block under torch.profiler, without memory, shapes or stacks."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return training.block()


def take_turns(blocks: dict[str, Block], rounds: int) -> dict[str, Took]:
    """Return, by tool, what its steps took in each round; the first three are left out."""
    took: dict[str, Took] = {name: Took([]) for name in blocks}
    warm_up = 3
    for number in range(warm_up + rounds):
        order = list(blocks)
        random.shuffle(order)
        for name in order:
            seconds = blocks[name]()
            if number >= warm_up:
                took[name].blocks.append(seconds)
    return took


def ours_and_the_profiler(setting: Setting) -> dict[str, Took]:
    """Let bare, traced and profiled blocks take turns in this process."""
    training = Training(setting)
    with traced(training) as (block, tracer):
        blocks: dict[str, Block] = {
            "bare": training.block,
            "bare again": training.block,
            OURS: block,
            "torch.profiler": lambda: profiled(training),
        }
        took = take_turns(blocks, setting.rounds)
        took[OURS].now_and_then = quantile(sorted(tracer.settlings), UNDISTURBED)
        return took


def inside_traceml(setting: Setting) -> dict[str, Took]:
    """Let bare blocks and TraceML's take turns; this process was started by `traceml run`."""
    import traceml_ai  # type: ignore[import-not-found]

    traceml_ai.init(mode="auto")
    training = Training(setting)
    blocks: dict[str, Block] = {
        "bare": training.block,
        "TraceML": lambda: training.block(lambda: traceml_ai.trace_step(training.model)),
    }
    return take_turns(blocks, setting.rounds)


def run_traceml(command: str, setting: Setting) -> dict[str, Took]:
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
        measured = json.loads(answer.read_text())
        return {name: Took(**each) for name, each in measured.items()}


@dataclass(frozen=True)
class Compared:
    """A tool against the bare loop: blocks by round, sorted, and the steps least disturbed."""

    ratios: list[float]
    undisturbed: float


def compare(took: dict[str, Took]) -> dict[str, Compared]:
    """Compare each tool's blocks and steps with the bare ones."""
    bare = took.pop("bare")
    return {
        name: Compared(
            sorted(sum(a) / sum(b) for a, b in zip(each.blocks, bare.blocks, strict=True)),
            undisturbed(each) / undisturbed(bare),
        )
        for name, each in took.items()
    }


def undisturbed(took: Took) -> float:
    """Return what a step takes on which nothing else but the tool bears."""
    steps = sorted(seconds for block in took.blocks for seconds in block)
    return quantile(steps, UNDISTURBED) + took.now_and_then


def report(setting: Setting, compared: dict[str, Compared]) -> bool:
    """Print a row a tool; return whether what is wanted was met."""
    print(
        f"{setting.model}, batch {setting.batch}, {setting.rounds} rounds of {setting.steps} "
        "steps: time of a step against the bare loop"
    )
    print("                   undisturbed  all, and their quartiles")
    for name, each in compared.items():
        low, middle, high = (quantile(each.ratios, share) for share in (0.25, 0.5, 0.75))
        print(f"  {name:16} {each.undisturbed:11.4f}  {middle:.4f} ({low:.3f} to {high:.3f})")
    ours = compared[OURS].undisturbed
    others = [compared[name].undisturbed for name in compared.keys() & OTHERS]
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
        took = inside_traceml(settings[0])
        args.inside_traceml.write_text(
            json.dumps({name: asdict(each) for name, each in took.items()})
        )
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
