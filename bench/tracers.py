"""What it costs to watch a script, for `stepscope trace`, torch.profiler and TraceML.

One process trains a few steps at a time, under a tool or under none, in an order that changes every
round: model, loader and memory are the same, only the tool differs. A machine that wavers slows
neighbours alike, so compared is what lies side by side: the median step of a block against those of
the two bare blocks of its round. The median of these ratios, with its interval, is the answer; the
same of one bare block against the other shows what two equal things differ by.

Not timed is what a tool does before and after a block (a profiler sorts its trace) and in its first
steps. The hooks of `stepscope trace` stay on all the time behind a switch, as in a real run: when a
class changes, an instruction that Python had made fast for it fails some fifty times. A function
more, in bare blocks too, is what the switch costs. What the tracer does now and then, flushing, is
hardly ever in a median. What it takes of a step is measured in seconds of training under the tracer
alone, where as many steps are flushed at once as in a real run, and added to the ratio.

Give `--traceml PATH` the `traceml` command of an environment that has traceml-ai and this torch;
it is no dependency of ours. It takes turns with bare blocks in a process that `traceml run` made,
so that what it does in the background slows both: its real cost is what is printed, or more.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from stepscope.hardware.host import cpu_model
from stepscope.meter.clock import now_ns
from stepscope.models import registry
from stepscope.records import run_folder
from stepscope.stats.intervals import Interval, interval_of, median
from stepscope.trace import torch_hooks
from stepscope.trace.patches import Patches
from stepscope.trace.tracer import Tracer

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
    thin: bool = False  # as many modules, operations and tensors, and next to no work


SETTINGS = [
    Setting("lenet", 8, first_steps=2, steps=10, rounds=600, most=1.02),
    Setting("resnet18", 16, first_steps=1, steps=3, rounds=20, most=1.005),
]
THINNER, THIN_SIDE = 16, 8  # channels are so many times fewer, and so large are images
EPOCH_SAMPLES = 50_000  # of CIFAR-10
BARE = ("bare", "bare again")
ALONE_S = 8.0  # of steps: flushed once a second
OURS = "stepscope trace"
OTHERS = {"torch.profiler", "TraceML"}


class Training:
    """A plain training loop."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(0)
        self.first_steps = setting.first_steps
        side = THIN_SIDE if setting.thin else 32
        data = TensorDataset(torch.randn(1000, 3, side, side), torch.randint(0, 10, (1000,)))
        shuffled = RandomSampler(data, replacement=True, num_samples=EPOCH_SAMPLES)
        self.loader = DataLoader(data, batch_size=setting.batch, sampler=shuffled)
        self.steps = setting.first_steps + setting.steps
        self.batches = self._epoch_after_epoch()
        self.model: nn.Module = registry.build(setting.model, classes=10, norm="batch")
        if setting.thin:
            make_thin(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def block(self, around_step: AroundStep = contextlib.nullcontext) -> list[float]:
        """Train one block; return how long each step took, without the first ones.

        Each step is inside a context, as a tool asks for it; the empty one takes 0.3 us.
        """
        device = torch.device("cpu")
        ends = []
        for images, labels in islice(self.batches, self.steps):
            with around_step():
                images, labels = images.to(device), labels.to(device)
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(images), labels)
                loss.backward()
                self.optimizer.step()
            ends.append(perf_counter())
        return [end - begin for begin, end in pairwise(ends[self.first_steps - 1 :])]

    def _epoch_after_epoch(self) -> Iterator[list[torch.Tensor]]:
        """Yield batches without end: a block is a part of an epoch, as long as a real one."""
        while True:
            yield from self.loader


def thin(setting: Setting) -> Setting:
    """Return the same training with next to no work in its steps."""
    return replace(setting, thin=True, batch=2, first_steps=2, steps=10)


def make_thin(model: nn.Module) -> None:
    """Replace each layer of a ResNet by one of the same kind with a sixteenth of the channels."""

    def fewer(channels: int) -> int:
        return max(channels // THINNER, 3)  # images keep their three

    for name, layer in list(model.named_children()):
        if isinstance(layer, nn.Conv2d):
            kernel: Any = layer.kernel_size
            around: dict[str, Any] = {"stride": layer.stride, "padding": layer.padding}
            channels = fewer(layer.in_channels), fewer(layer.out_channels)
            setattr(model, name, nn.Conv2d(*channels, kernel, bias=False, **around))
        elif isinstance(layer, nn.BatchNorm2d):
            setattr(model, name, nn.BatchNorm2d(fewer(layer.num_features)))
        elif isinstance(layer, nn.Linear):
            setattr(model, name, nn.Linear(fewer(layer.in_features), layer.out_features))
        else:
            make_thin(layer)


@dataclass
class Took:
    """The steps of every block of a tool, and what share of a step it took beside them."""

    blocks: list[list[float]]
    now_and_then: float = 0.0


@dataclass
class Weighed(Tracer):
    """A tracer that keeps, for each step, its part of the flushing that it was in."""

    flushings: list[float] = field(default_factory=list)

    def _flush(self) -> None:
        own_ns, steps_before = self.own_ns, self._writer.detector.tracker.steps
        super()._flush()
        steps = self._writer.detector.tracker.steps - steps_before
        self.flushings += [(self.own_ns - own_ns) * 1e-9 / max(1, steps)] * steps


class Switched(Patches):
    """Hooks that are switched on and off without a change of any class."""

    on = False

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put the hook beside what it would replace."""
        super().replace(owner, name, lambda original: self._either(make(original), original))

    def _either(self, hooked: Any, original: Any) -> Any:
        if isinstance(hooked, classmethod):  # of classes that are made: here are none
            return hooked

        @functools.wraps(hooked)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.on:
                return hooked(*args, **kwargs)
            return original(*args, **kwargs)

        return call


@contextlib.contextmanager
def traced(training: Training) -> Iterator[tuple[Block, Weighed]]:
    """Yield a block under the hooks of `stepscope trace`, which are on only while it trains."""
    with tempfile.TemporaryDirectory() as temporary:
        made = run_folder.create(Path(temporary), "bench", "trace", {})
        tracer = Weighed(made.path, now_ns())
        tracer.start()
        tracer._patches.undo()
        sampling = tracer._sampler._thread
        sampling.pause()
        switch = Switched()
        with mock.patch.object(torch_hooks, "Patches", return_value=switch):
            torch_hooks.install(tracer._hooks)

        def block() -> list[float]:
            switch.on = True
            sampling.resume()
            try:
                return training.block()
            finally:
                sampling.pause()
                switch.on = False

        try:
            yield block, tracer
        finally:
            tracer._sampler.stop()
            switch.undo()


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


def bare_blocks(training: Training) -> dict[str, Block]:
    """Return what the tools are compared with."""
    return dict.fromkeys(BARE, training.block)


def ours(setting: Setting) -> dict[str, Took]:
    """Let bare and traced blocks take turns."""
    training = Training(setting)
    with traced(training) as (block, tracer):
        took_alone: list[float] = []
        while sum(took_alone) < ALONE_S:
            took_alone += block()
        flushing_share = median(tracer.flushings) / median(took_alone)
        took = take_turns({**bare_blocks(training), OURS: block}, setting.rounds)
        took[OURS].now_and_then = flushing_share
        return took


def the_profiler(setting: Setting) -> dict[str, Took]:
    """Let bare and profiled blocks take turns, in a process whose hooks are off."""
    training = Training(setting)
    blocks = {**bare_blocks(training), "torch.profiler": lambda: profiled(training)}
    return take_turns(blocks, max(1, setting.rounds // 4))


def inside_traceml(setting: Setting) -> dict[str, Took]:
    """Let bare blocks and TraceML's take turns; this process was started by `traceml run`."""
    import traceml_ai  # type: ignore[import-not-found]

    traceml_ai.init(mode="auto")
    training = Training(setting)
    blocks = {
        **bare_blocks(training),
        "TraceML": lambda: training.block(lambda: traceml_ai.trace_step(training.model)),
    }
    return take_turns(blocks, setting.rounds)


def run_traceml(command: str, setting: Setting) -> dict[str, Took]:
    """Start this file again under `traceml run`; return what it measured."""
    with tempfile.TemporaryDirectory() as temporary:
        answer = Path(temporary) / "answer.json"
        run = [command, "run", "--logs-dir", temporary, "--run-name", "bench", __file__, "--args"]
        arguments = ["--inside-traceml", str(answer), "--only", setting.model]
        arguments += ["--thin"] * setting.thin
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


def compare(took: dict[str, Took]) -> dict[str, Interval]:
    """Return by tool what its median steps took against the bare ones of the same round."""
    medians = {name: [median(block) for block in each.blocks] for name, each in took.items()}
    first, second = (medians[name] for name in BARE)
    both = [(one + other) / 2 for one, other in zip(first, second, strict=True)]
    against = dict.fromkeys(took, both) | {BARE[1]: first}
    return {
        name: interval_of(
            [
                own / bare + took[name].now_and_then
                for own, bare in zip(medians[name], against[name], strict=True)
            ]
        )
        for name in took
        if name != BARE[0]
    }


def report(setting: Setting, compared: dict[str, Interval]) -> bool:
    """Print a row a tool; return whether what is wanted was met."""
    print(
        f"{setting.model}, batch {setting.batch}, {setting.rounds} rounds of {setting.steps} "
        "steps: a step against the bare loop, and 95 % interval"
    )
    for name, each in compared.items():
        known = each.low is not None and each.high is not None
        interval = f"({each.low:.4f} to {each.high:.4f})" if known else "(of one round)"
        print(f"  {name:16} {each.median:.4f} {interval}")
    ours = compared[OURS]
    others = {name: each for name, each in compared.items() if name in OTHERS}
    met = ours.median <= setting.most and all(ours.median < each.median for each in others.values())
    answer = "met" if met else "MISSED"
    print(f"  wanted at most {setting.most} and less than the others: {answer}", flush=True)
    unclear = [name for name, each in others.items() if not is_above(each, ours)]
    if unclear:
        print(
            f"  not told apart from {' and '.join(unclear)}: more rounds would be needed",
            flush=True,
        )
    return met


def is_above(one: Interval, other: Interval) -> bool:
    """Say whether one interval lies above another."""
    return one.low is not None and other.high is not None and one.low > other.high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traceml", metavar="PATH", help="the traceml command")
    parser.add_argument("--only", choices=[each.model for each in SETTINGS])
    parser.add_argument("--rounds", type=int, help="instead of the usual number")
    parser.add_argument("--inside-traceml", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--thin", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    settings = [each for each in SETTINGS if args.only in (None, each.model)]
    if args.rounds:
        settings = [replace(each, rounds=args.rounds) for each in settings]
    if args.thin:
        settings = [thin(each) for each in settings]
    if args.inside_traceml:
        took = inside_traceml(settings[0])
        args.inside_traceml.write_text(
            json.dumps({name: asdict(each) for name, each in took.items()})
        )
        return 0
    met = []
    for setting in settings:
        compared = compare(the_profiler(setting)) | compare(ours(setting))
        if args.traceml:
            traceml = compare(run_traceml(args.traceml, setting))
            compared["TraceML"] = traceml["TraceML"]
        met.append(report(setting, compared))
    print(f"  on {cpu_model()}, {os.cpu_count()} CPUs, torch {torch.__version__}")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
