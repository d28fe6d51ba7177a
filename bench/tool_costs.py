"""What watching a step of ResNet-18 costs in CPU time, for `stepscope trace` and other tools.

A step of half a second wavers by far more than any tool takes of it, and `tracers.py` cannot tell
them apart there. So each part of the cost is measured where it can be seen:

- in the step: blocks under a tool and bare ones take turns as in `tracers.py`, with a network of as
  many modules, operations and tensors and next to no work, on one thread. There the caches stay
  warm: in the real step hooks take more. Of ours, what clocks around each hook say in the real step
  (`trace_share.py`) is taken, if that is more.
- flushing: what `stepscope trace` does now and then in the training's thread, while the real
  network trains; others leave that to threads and processes of theirs.
- beside: the CPU time of the tool's other threads and processes, by the kernel's count, while a
  script trains the real network under `stepscope trace` and under `traceml run`, in turns, with no
  options. torch keeps every core busy, so this too is time that the training does not
  get. Threads and processes that have ended by the end are not counted.

Give `--traceml PATH` as for `tracers.py`.
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
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import torch
from trace_share import FLUSHING, costs_of_a_step_us
from tracers import (
    BARE,
    OURS,
    SETTINGS,
    Setting,
    Took,
    Training,
    compare,
    is_above,
    ours,
    run_traceml,
    the_profiler,
    thin,
)

from stepscope.hardware.host import cpu_model
from stepscope.stats.intervals import Interval, interval_of, median

MOST_SHARE = 0.005  # of the step's time on all cores
FIRST_STEPS = 5
CLOCKED_ROUNDS = 3
PROFILER, TRACEML = "torch.profiler", "TraceML"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--traceml", metavar="PATH", help="the traceml command")
    parser.add_argument("--rounds", type=int, default=500, help="of blocks with next to no work")
    parser.add_argument("--seconds", type=float, default=60.0, help="of real training, each time")
    parser.add_argument("--times", type=int, default=3, help="of real training under each tool")
    parser.add_argument("--train-under", choices=[OURS, TRACEML], help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--asked-by", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    [setting] = [each for each in SETTINGS if each.model == "resnet18"]
    if args.train_under:
        answer = train_and_count(setting, args.train_under, args.seconds, args.asked_by)
        args.answer.write_text(json.dumps(answer))
        return 0
    beside = turns_of_real_training(args.traceml, args.seconds, args.times)
    in_step = in_step_us(thin(setting), args.rounds, args.traceml)
    _, clocked_us = costs_of_a_step_us(setting, CLOCKED_ROUNDS)  # the last: its clocks stay on
    flushing_us = clocked_us.pop(FLUSHING)
    hooks_us = sum(clocked_us.values())
    print(f"  {OURS}, next to no work: {shown(in_step[OURS])} us; by clocks: {hooks_us:.0f} us")
    if hooks_us > in_step[OURS].median:
        in_step[OURS] = Interval(hooks_us, None, None)
    return 0 if report(in_step, flushing_us, beside) else 1


# in the step


def in_step_us(setting: Setting, rounds: int, traceml: str | None) -> dict[str, Interval]:
    """Return by tool what it adds to a step with next to no work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the process that TraceML starts
    setting = replace(setting, rounds=rounds)
    added: dict[str, Interval] = {}
    measured: list[Callable[[Setting], dict[str, Took]]] = [the_profiler, without_flushing]
    if traceml:
        measured.append(lambda setting: run_traceml(traceml, setting))
    for measure in measured:
        took = measure(setting)
        bare_us = median([median(block) for name in BARE for block in took[name].blocks]) * 1e6
        for name, ratio in compare(took).items():
            added[name] = scaled(ratio, bare_us)
    torch.set_num_threads(threads)
    return added


def without_flushing(setting: Setting) -> dict[str, Took]:
    """Let bare and traced blocks take turns; how flushing is shared by short steps is no matter."""
    took = ours(setting)
    took[OURS].now_and_then = 0.0
    return took


def scaled(ratio: Interval, bare_us: float) -> Interval:
    """Turn a ratio to the bare step into microseconds that are added to it."""
    low, high = (None if edge is None else (edge - 1) * bare_us for edge in (ratio.low, ratio.high))
    return Interval((ratio.median - 1) * bare_us, low, high)


# beside


def turns_of_real_training(
    traceml: str | None, seconds: float, times: int
) -> dict[str, list[dict[str, float]]]:
    """Let scripts train under each tool in turns; return by tool what each has counted."""
    here = str(Path(__file__).resolve())
    answers: dict[str, list[dict[str, float]]] = {OURS: []}
    if traceml:
        answers[TRACEML] = []
    for _ in range(times):
        for tool in random.sample(list(answers), len(answers)):
            with tempfile.TemporaryDirectory() as temporary:
                answer = Path(temporary) / "answer.json"
                script = ["--train-under", tool, "--answer", str(answer)]
                script += ["--seconds", str(seconds), "--asked-by", str(os.getpid())]
                if tool == OURS:
                    stepscope = str(Path(sys.executable).with_name("stepscope"))
                    command = [stepscope, "trace", "--out", temporary, here, *script]
                else:
                    command = [str(traceml), "run", "--logs-dir", temporary, "--run-name", "bench"]
                    command += [here, "--args", *script]
                paths = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
                environment = os.environ | ({"PYTHONPATH": paths} if tool == TRACEML else {})
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, env=environment
                )
                if not answer.exists():
                    sys.exit(f"{tool} gave no answer:\n{done.stdout}{done.stderr}")
                answers[tool].append(json.loads(answer.read_text()))
    return answers


def train_and_count(setting: Setting, tool: str, seconds: float, asked_by: int) -> dict[str, float]:
    """Train for a while; return the median step and the CPU time of others in it, microseconds."""
    around_step: Any = contextlib.nullcontext
    training = Training(setting)
    if tool == TRACEML:
        import traceml_ai  # type: ignore[import-not-found]

        traceml_ai.init(mode="auto")
        around_step = lambda: traceml_ai.trace_step(training.model)  # noqa: E731
    training.steps = FIRST_STEPS
    training.block(around_step)
    before_us, began = cpu_of_others_us(asked_by), perf_counter()
    training.steps = training.first_steps + setting.steps
    took: list[float] = []
    steps = 0
    while perf_counter() - began < seconds:
        took += training.block(around_step)
        steps += training.steps
    after_us = cpu_of_others_us(asked_by)
    spent_us = sum(after_us[who] - before_us.get(who, 0.0) for who in after_us)
    return {"step_us": median(took) * 1e6, "beside_us": spent_us / steps}


def cpu_of_others_us(asked_by: int) -> dict[str, float]:
    """Return the CPU time of a tool's processes, and of Python's other threads in this one."""
    own = os.getpid()
    tasks = [Path(f"/proc/{own}/task/{each.native_id}") for each in threading.enumerate()]
    tasks.remove(Path(f"/proc/{own}/task/{threading.main_thread().native_id}"))
    for process in psutil.Process(asked_by).children(recursive=True):
        if process.pid != own:
            tasks += Path(f"/proc/{process.pid}/task").iterdir()
    return {str(task): int((task / "schedstat").read_text().split()[0]) * 1e-3 for task in tasks}


# the answer


def report(
    in_step: dict[str, Interval],
    flushing_us: float,
    beside: dict[str, list[dict[str, float]]],
) -> bool:
    """Print a row a tool; return whether what is wanted was met."""
    step_us = median([each["step_us"] for answers in beside.values() for each in answers])
    print(
        f"resnet18, batch 16, a step of {step_us:.0f} us: microseconds of CPU time, 95 % interval"
    )
    print(f"  {'':16} {'in the step':>24} {'flushing':>9} {'beside':>22} {'in all':>22}")
    in_all: dict[str, Interval] = {}
    for name, added in in_step.items():
        flushed_us = flushing_us if name == OURS else 0.0
        others = interval_of([each["beside_us"] for each in beside.get(name, [])] or [0.0])
        in_all[name] = total(added, Interval(flushed_us, None, None), others)
        print(
            f"  {name:16} {shown(added):>24} {flushed_us:9.0f} {shown(others):>22} "
            f"{shown(in_all[name]):>22}"
        )
    cores = os.cpu_count() or 1
    # While the training's own thread is busy with a tool, the other cores wait.
    alone_us = in_step[OURS].median + flushing_us
    share = (alone_us + median([each["beside_us"] for each in beside[OURS]]) / cores) / step_us
    others_in_all = {name: each for name, each in in_all.items() if name in (PROFILER, TRACEML)}
    less = all(in_all[OURS].median < each.median for each in others_in_all.values())
    met = share <= MOST_SHARE and less
    answer = "met" if met else "MISSED"
    print(f"  {OURS} takes {share:.2%} of the step; wanted at most {MOST_SHARE:.1%}", end="")
    print(f" and less than the others: {answer}")
    unclear = [name for name, each in others_in_all.items() if not is_above(each, in_all[OURS])]
    if unclear:
        print(f"  not told apart from {' and '.join(unclear)}: intervals overlap")
    print(f"  on {cpu_model()}, {cores} CPUs, torch {torch.__version__}")
    return met


def total(*parts: Interval) -> Interval:
    """Add up parts; all of them at an end of their intervals is less likely than 5 %."""
    low, high = (
        sum(each.median if edge is None else edge for each, edge in zip(parts, edges, strict=True))
        for edges in ([each.low for each in parts], [each.high for each in parts])
    )
    return Interval(sum(each.median for each in parts), low, high)


def shown(interval: Interval) -> str:
    """Write an interval without digits that say nothing."""
    if interval.low is None or interval.high is None:
        return f"{interval.median:.0f}"
    return f"{interval.median:.0f} ({interval.low:.0f} to {interval.high:.0f})"


if __name__ == "__main__":
    sys.exit(main())
