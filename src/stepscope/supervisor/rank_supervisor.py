"""The supervising parent of one rank of a distributed training.

`python -m stepscope.supervisor.rank_supervisor RUN` is what the launcher starts for `stepscope run
--processes N`. Rank 0 passes on what its training says to the parent of the run.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from stepscope.hardware.die_with_parent import die_with_parent
from stepscope.meter.clock import now_ns, seconds
from stepscope.processes.process_options import ProcessOptions
from stepscope.records import run_folder, run_reader, schema
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import validate
from stepscope.supervisor import rank_merge
from stepscope.supervisor.child_supervisor import ChildWatch, Outcome, RunListener
from stepscope.supervisor.rank_processes import RankInfo, find_rank
from stepscope.supervisor.run_lifecycle import lived_s, run_to_end
from stepscope.supervisor.train_child import end_training, judge_training, training_process_of
from stepscope.supervisor.warm_start import ChildProcess

_TIME_TO_NOTICE_S = 5.0  # for a training whose peer is gone to find that out by itself
_OF_A_RANK_ALONE = ("forecast",)  # reported by rank 0 and not true of the run


@dataclass(frozen=True)
class Rank:
    """One of several processes of a run: its place, the run's folder, and what it is to train.

    Where no parent of the run is above it, rank 0 looks after the run's tables `meanwhile`.
    """

    place: RankInfo
    run: Path
    spec: RunSpec
    options: ProcessOptions
    reads_energy: bool = False
    meanwhile: Callable[[], None] = lambda: None


def run_rank(
    rank: Rank, listener: RunListener, origin_ns: int | None = None
) -> tuple[Path, Outcome]:
    """Train one rank in its folder: a new one, or the one from before a stop.

    `origin_ns` is the run's origin on this machine's clock, where the run has one.
    """
    number, asked = rank.place.rank, rank.spec.model_dump(mode="json")
    path = rank.run / schema.RANKS / str(number)
    resumed, elapsed_s = None, lived_s(run_reader.load_run(rank.run))
    if (path / schema.RUN).is_file():
        made, before = run_folder.RunFolder(path), run_reader.load_run(path)
        resumed, elapsed_s = before.status, max(elapsed_s, lived_s(before))
    else:
        made = run_folder.create_rank(rank.run, number, "run", asked)
    if origin_ns is not None:
        elapsed_s = seconds(now_ns() - origin_ns)
    options = replace(rank.options, distributed=True)
    alone = training_process_of(made, None, has_workers=rank.spec.workers > 0, options=options)
    supervised = replace(
        alone,
        stop=functools.partial(stop_rank, rank, made),
        judge=functools.partial(judge_rank, rank),
        reads_energy=rank.reads_energy,
        meanwhile=rank.meanwhile,
    )
    outcome = run_to_end(
        made,
        supervised,
        listener,
        elapsed_s=elapsed_s,
        resumed=resumed,
        taken_up={"spec": asked, "exit_code": None},
    )
    return path, outcome


def stop_rank(
    rank: Rank, made: run_folder.RunFolder, child: ChildProcess, number: int, before: int
) -> None:
    """Ask a rank to stop; one that may be waiting for a peer that is gone is given seconds.

    Until it is ready it has nothing to save, and where it waits for others to come it is deaf.
    """
    end_training(child, number, before)
    if before == 0 and (not _is_ready(made) or _failed_peer(rank) is not None):
        timer = threading.Timer(_TIME_TO_NOTICE_S, child.kill)
        timer.daemon = True
        timer.start()


def judge_rank(rank: Rank, watch: ChildWatch, returncode: int) -> Outcome:
    """Return how a rank ended: stopped because another one failed, or on request."""
    outcome = judge_training(watch, returncode)
    peer = _failed_peer(rank)
    if outcome.status == schema.INTERRUPTED and peer is not None:
        reason = f"{peer}, and all ranks were ended with it"
        watch.folder.add_event(schema.PEER_LOST, seconds(now_ns() - watch.sampler.origin_ns))
        outcome = replace(outcome, status=schema.FAILED, reason=reason, exit_code=5)
    watch.folder.update_info(exit_code=outcome.exit_code)  # whoever sees it closed reads this too
    return outcome


def _is_ready(made: run_folder.RunFolder) -> bool:
    """Return whether the rank has joined its process group and is ready to train."""
    return "distributed" in made.read_info()["environment"]


def _failed_peer(rank: Rank) -> str | None:
    return rank_merge.failed_peer(rank.run, rank.place.rank, rank.place.world)


@dataclass
class Relay:
    """Forwards the messages of rank 0 and the output of every rank to the parent of the run."""

    rank: int
    messages: IO[str] | None

    def message(self, message: dict[str, Any]) -> None:
        """Pass on what holds for the run."""
        if self.messages is not None and message["type"] not in _OF_A_RANK_ALONE:
            self.messages.write(json.dumps(message) + "\n")

    def output(self, line: str) -> None:
        """Print a line, with its rank."""
        print(f"rank {self.rank}: {line}", flush=True)

    def stopping(self) -> None:
        """Say nothing: the parent of the run has."""


def main(argv: list[str]) -> int:
    """Train as the rank that torchrun's variables name, in the run that the arguments name."""
    parser = argparse.ArgumentParser(prog="stepscope.supervisor.rank_supervisor")
    parser.add_argument("run", type=Path)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--origin-ns", type=int, required=True)
    ProcessOptions.add_to(parser)
    args = parser.parse_args(argv)
    launcher = os.getppid()
    die_with_parent(launcher)
    place = find_rank()
    assert place is not None, "the launcher starts two or more"
    spec = validate(run_reader.load_run(args.run).spec)
    rank = Rank(place, args.run, spec, ProcessOptions.of(args))
    relay = Relay(place.rank, _open_messages(place, launcher, args.messages))
    _, outcome = run_rank(rank, relay, args.origin_ns)
    return outcome.exit_code


def _open_messages(place: RankInfo, launcher: int, descriptor: int) -> IO[str] | None:
    """Open what the launcher was given to write messages to; torch hands on no descriptors.

    Only rank 0 writes, and only where there is such a file (Linux): elsewhere the run goes
    unseen until it ends.
    """
    path = Path(f"/proc/{launcher}/fd/{descriptor}")
    if place.rank != 0 or not path.exists():
        return None
    return path.open("w", encoding="utf-8", buffering=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
