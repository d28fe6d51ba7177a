"""A training of ours under a user's torchrun, where each process is a rank of the run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepscope.analyze.run_summary import Measured, summarize
from stepscope.errors import RequestError
from stepscope.processes.process_options import ProcessOptions
from stepscope.records import run_folder, run_reader, schema
from stepscope.records.types import RunRecord
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import with_changes
from stepscope.supervisor import rank_merge
from stepscope.supervisor.child_supervisor import Outcome, RunListener, StopSignals, stop_signals
from stepscope.supervisor.rank_merge import GrowingTables
from stepscope.supervisor.rank_processes import RankInfo
from stepscope.supervisor.rank_supervisor import Rank, run_rank


def in_place(place: RankInfo, spec: RunSpec) -> RunSpec:
    """Return the settings for as many processes as torchrun has started.

    Raises:
        RequestError: they ask for another number, or for what only `--processes` can do.
    """
    if spec.processes not in (1, place.world):
        raise RequestError(
            f"processes: {spec.processes} was asked for, and torchrun has started {place.world}. "
            "Leave --processes out under torchrun."
        )
    if spec.memory_limit is not None:
        raise RequestError(
            "memory_limit: it is for the whole run, and under torchrun each process is supervised "
            "apart. Use `stepscope run --processes` instead of torchrun."
        )
    return with_changes(spec.model_dump(mode="json"), {"processes": place.world})


def run_in_place(
    place: RankInfo,
    run: Path | None,
    spec: RunSpec,
    listener: RunListener,
    *,
    force: bool = False,
) -> tuple[Path, Outcome]:
    """Train one rank of a run: a new run, or `run`; rank 0 also closes the run as a whole."""
    out, asked = Path(spec.out), spec.model_dump(mode="json")
    is_new = run is None
    if run is None:
        make = run_folder.create
        run = place.find_run(out, lambda: make(out, spec.run_name, "run", asked).path, goes_on=True)
    launcher = Launcher(listener.output)
    rank = Rank(place, run, spec, ProcessOptions(force=force), meanwhile=launcher.look)
    if place.rank != 0:
        return run_rank(rank, listener)
    tables = GrowingTables(run, place.world)

    def look_after_run() -> None:
        launcher.look()
        tables.look()

    rank = replace(rank, reads_energy=True, meanwhile=look_after_run)
    top = run_folder.RunFolder(run)
    # The launcher stops rank 0 when another one fails: it still closes the run, and says why.
    with top.held(), stop_signals(pausing=False) as signals:
        top.update_info(status=schema.RUNNING, reason=None, process=os.getpid(), spec=asked)
        try:
            mine, outcome = run_rank(rank, listener)
            ended = answer_for_all(place, run, mine, outcome, signals)
        except BaseException as error:
            top.close(status=schema.FAILED, reason=f"{type(error).__name__}: {error}")
            raise
    may_restart = place.restarts < place.max_restarts and not outcome.asked_to_stop
    if is_new and (ended.status == schema.COMPLETED or not may_restart):
        place.forget(out, goes_on=True)
    return run, ended


@dataclass
class Launcher:
    """The launcher of this rank. If it is killed, the rank stops itself.

    It asks all ranks to stop after the same step, and so ends those of other machines too.
    """

    say: Callable[[str], None]
    process: int = field(default_factory=os.getppid)
    is_gone: bool = False

    def look(self) -> None:
        """Stop once when it is gone."""
        if not self.is_gone and os.getppid() != self.process:
            self.is_gone = True
            self.say("the launcher is gone: stopping after this step")
            os.kill(os.getpid(), signal.SIGTERM)


def answer_for_all(
    place: RankInfo,
    run: Path,
    mine: Path,
    outcome: Outcome,
    signals: StopSignals,
) -> Outcome:
    """Merge the folders of all ranks and close the run; rank 0 does this."""
    rank_merge.wait_for_others(run, place.world, outcome, signals)
    top = run_folder.RunFolder(run)
    ranks = rank_merge.put_together(top, place.world)
    ended = rank_merge.outcome_of(ranks, place.world)
    assert ended is not None, "rank 0 has a folder"
    info = run_folder.RunFolder(mine).read_info()
    summary = summarize(run_reader.load_run(run), _figures(info, ranks))
    top.close(
        status=ended.status,
        reason=ended.reason,
        process=None,
        environment=info["environment"],
        instrument=info["instrument"],
        summary=summary,
    )
    return replace(ended, asked_to_stop=outcome.asked_to_stop)


def _figures(first: RunRecord, ranks: list[run_reader.Run]) -> Measured:
    """Return the figures of the whole run that are in no table; memory is summed over ranks."""
    summaries = [run.summary for run in ranks]
    return Measured(
        wall_s=first["summary"].get("wall_s"),
        preparation_s=first["summary"].get("preparation_s"),
        layers=first["summary"].get("layers"),
        peak_memory_bytes=_sum_of_known([each.get("peak_memory_bytes") for each in summaries]),
        device_peak_memory_bytes=_sum_of_known(
            [each.get("device_peak_memory_bytes") for each in summaries]
        ),
        absent=rank_merge.absent_of(first),
    )


def _sum_of_known(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
