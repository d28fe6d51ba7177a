"""One training of ours over several processes, started by us or by somebody's own torchrun.

    stepscope run --processes 2        torchrun --nproc-per-node 2 -m stepscope run
     parent, of the run                 launcher
      launcher                           parent of rank 0, of the run too ── training
       parent of rank 0 ── training      parent of rank 1 ── training
       parent of rank 1 ── training

The parent of a rank is the same in both (`experiments.rank`): it samples, supervises and closes
`ranks/<n>/`. In the first form the launcher is what the parent of the run supervises, like any
other training, with its memory limit around all of them; that is here. The second is in
`experiments.in_place`.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import replace

from stepscope.errors import RequestError
from stepscope.experiments import together
from stepscope.experiments.fork_server import ForkServer
from stepscope.experiments.growing import GrowingTables
from stepscope.experiments.memory_limit import MemoryLimit
from stepscope.experiments.supervise import Charge, Outcome, Watch
from stepscope.experiments.training import (
    end_training,
    judge_training,
    start_training,
    training_of,
)
from stepscope.hardware.host import usable_cpus
from stepscope.records import folder, schema
from stepscope.spec import RunSpec
from stepscope.train.options import Options

_CUT_OFF = Outcome(schema.INTERRUPTED, "stopped before the training could save", 130)


def charge_of(
    made: folder.RunFolder,
    spec: RunSpec,
    limit: MemoryLimit | None,
    options: Options,
    time_limit_s: float | None = None,
    fork_server: ForkServer | None = None,
) -> Charge:
    """Return the training that a folder asks for, in as many processes as it asks for."""
    if spec.processes == 1:
        return training_of(
            made,
            limit,
            has_workers=spec.workers > 0,
            options=options,
            time_limit_s=time_limit_s,
            fork_server=fork_server,
        )
    return Charge(
        functools.partial(_start, made, spec, limit, options),
        end_training,
        functools.partial(judge_run, made, spec.processes),
        memory_limit=limit,
        time_limit_s=time_limit_s,
        meanwhile=GrowingTables(made.path, spec.processes).look,
    )


def _start(
    made: folder.RunFolder,
    spec: RunSpec,
    limit: MemoryLimit | None,
    options: Options,
    messages: int,
    origin_ns: int,
) -> subprocess.Popen[bytes]:
    launcher = [sys.executable, "-m", "stepscope.train.launcher", "--parent", str(os.getpid())]
    torchrun = ["--standalone", "--nproc-per-node", str(spec.processes)]
    rank = ["-m", "stepscope.experiments.rank", str(made.path.resolve())]
    rank += ["--messages", str(messages), "--origin-ns", str(origin_ns), *options.switches()]
    threads = spec.threads or max(1, (usable_cpus() or 1) // spec.processes)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    return start_training([*launcher, *torchrun, *rank], messages, limit, environment)


def judge_run(made: folder.RunFolder, world: int, watch: Watch, returncode: int) -> Outcome:
    """Put the run together, and decide from its ranks how it ended."""
    together.wait_for_rest(made.path, world)
    gone = _CUT_OFF if watch.signals.stops > 1 else together.GONE
    outcome = together.outcome_of(together.put_together(made, world, gone), world)
    if outcome is not None and _was_for_memory(watch, outcome):
        # The word to stop that torch passes on to ranks does not say what for.
        outcome = replace(outcome, status=schema.OUT_OF_MEMORY) if watch.ready else None
    watch.outcome = outcome
    return judge_training(watch, returncode)


def _was_for_memory(watch: Watch, outcome: Outcome) -> bool:
    is_asked_by_us = watch.memory.asked and not watch.signals.stops
    return is_asked_by_us and outcome.status == schema.INTERRUPTED


def require_one_process(spec: RunSpec, what: str) -> None:
    """Refuse several processes where only a training itself can have them.

    Raises:
        RequestError: several were asked for.
    """
    if spec.processes > 1:
        raise RequestError(
            f"processes: {what} wants 1, found {spec.processes}. Several processes train with "
            "`stepscope run` and `stepscope sweep`."
        )
