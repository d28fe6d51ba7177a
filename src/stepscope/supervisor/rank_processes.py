"""The ranks of one training: how several are started, and the supervising parent of each.

Each rank has its own supervising parent and its own run folder, `ranks/<n>/`. For `stepscope run
--processes N` the parent is `python -m stepscope.supervisor.rank_processes RUN`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from stepscope.hardware.die_with_parent import die_with_parent
from stepscope.hardware.host import usable_cpus
from stepscope.hardware.process import RankInfo, find_rank
from stepscope.meter.clock import now_ns, seconds
from stepscope.processes.training_process import ProcessOptions
from stepscope.records import run_folder, run_reader, schema
from stepscope.records.types import RunMessage
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import validate
from stepscope.supervisor import rank_merge
from stepscope.supervisor.child_supervisor import (
    ChildWatch,
    Outcome,
    RunListener,
    SilentListener,
    SupervisedProcess,
)
from stepscope.supervisor.run_lifecycle import lived_s, run_to_end
from stepscope.supervisor.train_child import (
    CUT_OFF,
    PYTHON_VARIABLES,
    TrainingProcess,
    start_in_session,
    training_outcome,
)
from stepscope.supervisor.warm_start import ChildProcess


@dataclass(frozen=True, kw_only=True)
class RankProcesses(SupervisedProcess):
    """The training of a folder's settings in several processes, started by torchrun."""

    folder: run_folder.RunFolder
    spec: RunSpec
    options: ProcessOptions

    def start(self, messages: int, origin_ns: int) -> subprocess.Popen[bytes]:
        """Start torchrun, which starts the ranks."""
        launcher = [sys.executable, "-m", "stepscope.processes.torchrun_launcher"]
        torchrun = [str(os.getpid()), "--standalone"]
        torchrun += ["--nproc-per-node", str(self.spec.processes)]
        rank = ["-m", "stepscope.supervisor.rank_processes", str(self.folder.path.resolve())]
        rank += [str(messages), str(origin_ns), self.options.to_json()]
        threads = self.spec.threads or max(1, (usable_cpus() or 1) // self.spec.processes)
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **PYTHON_VARIABLES}
        command = [*launcher, *torchrun, *rank]
        return start_in_session(command, messages, self.memory_limit, environment)

    def outcome(self, watch: ChildWatch, returncode: int) -> Outcome:
        """Merge the ranks' folders and return how the run ended."""
        world_size = self.spec.processes
        rank_merge.wait_for_rest(self.folder.path, world_size)
        killed = CUT_OFF if watch.signals.stops > 1 else rank_merge.KILLED
        ranks = rank_merge.merge_ranks(self.folder, world_size, killed)
        outcome = rank_merge.outcome_of(ranks, world_size)
        memory_is_short = watch.memory.stop_requested and not watch.signals.stops
        if outcome is not None and memory_is_short and outcome.status == schema.INTERRUPTED:
            # Torch forwards the request to stop without its reason.
            outcome = replace(outcome, status=schema.OUT_OF_MEMORY) if watch.ready else None
        watch.outcome = outcome
        return training_outcome(watch, returncode)


_TIME_TO_NOTICE_S = 5.0  # for a training to notice that its peer has exited


@dataclass(frozen=True)
class Rank:
    """One of several processes of a run: its rank, the run's folder, and what it trains."""

    info: RankInfo
    run: Path
    spec: RunSpec
    options: ProcessOptions
    reads_energy: bool = False
    on_sample: Callable[[], None] = lambda: None

    def failed_peer(self) -> str | None:
        """Return which other rank failed or disappeared; None if none did."""
        return rank_merge.failed_peer(self.run, self.info.rank, self.info.world_size)


@dataclass(frozen=True, kw_only=True)
class RankTraining(TrainingProcess):
    """The training process of one rank."""

    rank: Rank

    def stop(self, child: ChildProcess, number: int, before: int) -> None:
        """Ask it to stop; kill it after seconds if it may be waiting for a peer that has exited."""
        super().stop(child, number, before)
        if before > 0:
            return
        is_ready = "distributed" in self.folder.read_info()["environment"]
        if not is_ready or self.rank.failed_peer() is not None:
            timer = threading.Timer(_TIME_TO_NOTICE_S, child.kill)
            timer.daemon = True
            timer.start()

    def outcome(self, watch: ChildWatch, returncode: int) -> Outcome:
        """Return how it ended: stopped because another rank failed, or on request."""
        outcome = training_outcome(watch, returncode)
        peer = self.rank.failed_peer()
        if outcome.status == schema.INTERRUPTED and peer is not None:
            reason = f"{peer}, which ended all ranks"
            watch.folder.add_event(schema.PEER_LOST, seconds(now_ns() - watch.sampler.origin_ns))
            outcome = replace(outcome, status=schema.FAILED, reason=reason, exit_code=5)
        # Before the folder is closed: others read the exit code of a closed one.
        watch.folder.update_info(exit_code=outcome.exit_code)
        return outcome


def run_rank(
    rank: Rank, listener: RunListener, origin_ns: int | None = None
) -> tuple[Path, Outcome]:
    """Train one rank in its folder: a new one, or the one from before a stop."""
    number, spec = rank.info.rank, rank.spec.model_dump(mode="json")
    path = rank.run / schema.RANKS / str(number)
    resumed, elapsed_s = None, lived_s(run_reader.load_run(rank.run))
    if (path / schema.RUN).is_file():
        made, before = run_folder.RunFolder(path), run_reader.load_run(path)
        resumed, elapsed_s = before.status, max(elapsed_s, lived_s(before))
    else:
        made = run_folder.create_rank(rank.run, number, "run", spec)
    if origin_ns is not None:
        elapsed_s = seconds(now_ns() - origin_ns)
    training = RankTraining(
        rank=rank,
        folder=made,
        options=replace(rank.options, distributed=True),
        has_workers=rank.spec.workers > 0,
        hang_after_s=rank.options.hang_after_s,
        on_hang=rank.options.on_hang,
        reads_energy=rank.reads_energy,
        on_sample=rank.on_sample,
    )
    outcome = run_to_end(
        made,
        training,
        listener,
        elapsed_s=elapsed_s,
        resumed=resumed,
        fields={"spec": spec, "exit_code": None},
    )
    return path, outcome


@dataclass
class RankListener(SilentListener):
    """Forwards the messages of rank 0 and the output of every rank to the parent of the run."""

    rank: int
    messages: IO[str] | None

    def message(self, message: RunMessage) -> None:
        """Forward a message that holds for the whole run; a forecast is a rank's own."""
        if self.messages is not None and message["type"] != "forecast":
            self.messages.write(json.dumps(message) + "\n")

    def output(self, line: str) -> None:
        """Print a line, with its rank."""
        print(f"rank {self.rank}: {line}", flush=True)


def main(argv: list[str]) -> int:
    """Train as the rank that torchrun's variables name, in the run that the arguments name."""
    run, number, origin, options = argv
    launcher = os.getppid()
    die_with_parent(launcher)
    info = find_rank()
    assert info is not None, "the launcher starts two or more"
    # Torch passes on no descriptors. Without such a file (not Linux) the run shows no progress.
    pipe = Path(f"/proc/{launcher}/fd/{number}")
    messages = None
    if info.rank == 0 and pipe.exists():
        messages = pipe.open("w", encoding="utf-8", buffering=1)
    spec = validate(run_reader.load_run(Path(run)).spec)
    rank = Rank(info, Path(run), spec, ProcessOptions.from_json(options))
    _, outcome = run_rank(rank, RankListener(info.rank, messages), int(origin))
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
