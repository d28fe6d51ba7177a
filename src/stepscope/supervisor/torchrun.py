"""A run under a user's torchrun, where each process is a rank of the run."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepscope.analyze.run_summary import Measured, summarize
from stepscope.errors import RequestError
from stepscope.hardware.process import RankInfo
from stepscope.processes.training_process import DEFAULT_OPTIONS, ProcessOptions
from stepscope.records import run_folder, run_reader, schema
from stepscope.records.folder_sync import FolderSync
from stepscope.records.types import RecordedSpec
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import with_changes
from stepscope.supervisor import preflight, rank_merge
from stepscope.supervisor.child_supervisor import Outcome, RunListener
from stepscope.supervisor.rank_processes import Rank, run_rank
from stepscope.supervisor.rank_tables import GrowingTables
from stepscope.supervisor.signals import StopSignals, stop_signals

_WAIT_FOR_FOLDER_S = 120.0
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class FolderRendezvous:
    """Files in `out` through which ranks learn the folder of their run, which rank 0 creates.

    A run that `survives_restart` is found again after one; otherwise each start creates its own.
    """

    rank: RankInfo
    out: Path
    survives_restart: bool = False

    def find_run(self, make: Callable[[], Path]) -> Path:
        """Return the folder of the run: rank 0 creates it, the others ask for it."""
        if self.rank.rank != 0:
            return self._ask()
        run = _read(self.note) if self.survives_restart and self.rank.restarts > 0 else None
        if run is None:
            self.note.unlink(missing_ok=True)
            run = make()
            _write(self.note, run)
        threading.Thread(target=self._answer, args=(run,), daemon=True).start()
        return run

    def forget(self) -> None:
        """Remove the note of rank 0, and answers that no rank has read."""
        for file in (self.note, *self.out.glob(f"{self.note.name}.*")):
            file.unlink(missing_ok=True)

    @property
    def note(self) -> Path:
        """The file in which rank 0 names the run."""
        start = "" if self.survives_restart else f"-{self.rank.restarts}"
        return self.out / f".rendezvous-{self.rank.run_id}{start}"

    def _file(self, kind: str, name: str) -> Path:
        return self.note.with_name(f"{self.note.name}.{kind}-{name}")

    def _ask(self) -> Path:
        """Ask rank 0 with a new file name: an old answer is another process's."""
        rank = self.rank.rank
        name = f"{rank}-{uuid.uuid4().hex}"
        question, answer = self._file("ask", name), self._file("answer", name)
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            question.touch()
        except OSError as error:
            raise RequestError(
                f"cannot write into {self.out}: {error.strerror}. "
                "Choose a folder that all ranks can write with --out DIR."
            ) from error
        try:
            until = time.monotonic() + _WAIT_FOR_FOLDER_S
            while time.monotonic() < until:
                if (run := _read(answer)) is not None:
                    return run
                time.sleep(_LOOK_EVERY_S)
        finally:
            for file in (question, answer):
                file.unlink(missing_ok=True)
        raise RequestError(
            f"rank {rank} found no run folder of rank 0 in {self.out} within "
            f"{_WAIT_FOR_FOLDER_S:.0f} s. All ranks need the same --out, on a shared file system."
        )

    def _answer(self, run: Path) -> None:
        """Answer every question until each other rank has removed an answer.

        The question of an earlier training, whose rank was killed, gets an answer that stays.
        """
        answers: dict[str, list[Path]] = {str(rank): [] for rank in range(1, self.rank.world_size)}
        while answers:
            # A shared folder may be unreachable for a moment: try again.
            with contextlib.suppress(OSError):
                if not self.note.exists():  # removed by `forget`: the training is over
                    return
                for question in self.out.glob(self._file("ask", "*").name):
                    name = question.name.rpartition(".ask-")[2]
                    answer = self._file("answer", name)
                    _write(answer, run)
                    question.unlink(missing_ok=True)
                    answers.get(name.partition("-")[0], []).append(answer)
                for rank in list(answers):
                    if not all(answer.exists() for answer in answers[rank]):
                        del answers[rank]
            time.sleep(_LOOK_EVERY_S)


def _write(file: Path, run: Path) -> None:
    # A rank 0 that is started again may overlap the one before, which answers the same question.
    replacement = file.with_name(f"{file.name}.{uuid.uuid4().hex}.new")
    replacement.write_text(run.name, encoding="utf-8")
    replacement.replace(file)


def _read(file: Path) -> Path | None:
    """Return the run that a note or an answer names; None if there is none yet."""
    try:
        run = file.parent / file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return run if (run / schema.RUN).is_file() else None


def spec_under_torchrun(rank: RankInfo, spec: RunSpec) -> RunSpec:
    """Return the settings for as many processes as torchrun has started."""
    if spec.processes not in (1, rank.world_size):
        raise RequestError(
            f"processes: wanted {spec.processes}, but torchrun started {rank.world_size}. "
            "Leave out --processes under torchrun."
        )
    if spec.memory_limit is not None:
        raise RequestError(
            "memory_limit: not available under torchrun, where each process has its own "
            "supervisor. Use `stepscope run --processes` instead."
        )
    return with_changes(spec.model_dump(mode="json"), {"processes": rank.world_size})


def train_rank(
    info: RankInfo,
    run: Path | None,
    spec: RunSpec,
    listener: RunListener,
    options: ProcessOptions = DEFAULT_OPTIONS,
) -> tuple[Path, Outcome]:
    """Train one rank of a run: a new run, or `run`; rank 0 also closes the run as a whole."""
    spec = spec_under_torchrun(info, spec)
    preflight.check(spec)
    out, settings = Path(spec.out), spec.model_dump(mode="json")
    rendezvous = FolderRendezvous(info, out, survives_restart=True)
    is_new = run is None
    if run is None:
        run = rendezvous.find_run(
            lambda: run_folder.create(out, spec.run_name, "run", settings).path
        )
    launcher = Launcher(listener.output)
    rank = Rank(info, run, spec, options, on_sample=launcher.check)
    if info.rank != 0:
        return run_rank(rank, listener)
    tables = GrowingTables(run, info.world_size)

    def on_sample() -> None:
        launcher.check()
        tables.update()

    rank = replace(rank, reads_energy=True, on_sample=on_sample)
    top = run_folder.RunFolder(run)
    # The launcher stops rank 0 when another one fails: it still closes the run.
    with top.held(), stop_signals(pausing=False) as signals, FolderSync(top):
        top.update_info(status=schema.RUNNING, reason=None, process=os.getpid(), spec=settings)
        try:
            own, outcome = run_rank(rank, listener)
            ended = close_run(info, run, own, outcome, signals)
        except BaseException as error:
            top.close(status=schema.FAILED, reason=f"{type(error).__name__}: {error}")
            raise
    # Not by the signal that stopped rank 0: the launcher also sends it before a restart.
    is_over = ended.status in (schema.COMPLETED, schema.INTERRUPTED)
    if is_new and (is_over or info.restarts >= info.max_restarts):
        rendezvous.forget()
    return run, ended


@dataclass
class Launcher:
    """The launcher of this rank. If it is killed, the rank asks all ranks to stop."""

    print_line: Callable[[str], None]
    process: int = field(default_factory=os.getppid)
    has_ended: bool = False

    def check(self) -> None:
        """Request a stop, once, if the launcher has ended."""
        if not self.has_ended and os.getppid() != self.process:
            self.has_ended = True
            self.print_line("the launcher has ended: stopping after this step")
            os.kill(os.getpid(), signal.SIGTERM)


def trace_rank(
    rank: RankInfo,
    out: Path,
    name: str,
    spec: RecordedSpec,
    run: Callable[[run_folder.RunFolder, Callable[[], None]], Outcome],
) -> tuple[Path, Outcome]:
    """Trace one rank with `run`; rank 0 also closes the run as a whole."""
    rendezvous = FolderRendezvous(rank, out)
    top = rendezvous.find_run(lambda: run_folder.create(out, name, "trace", spec).path)
    made = run_folder.create_rank(top, rank.rank, "trace", {**spec, "rank": rank.rank})
    with stop_signals(pausing=False) as signals:
        if rank.rank != 0:
            return made.path, run(made, lambda: None)
        with FolderSync(run_folder.RunFolder(top)):
            outcome = run(made, GrowingTables(top, rank.world_size).update)
        try:
            close_run(rank, top, made.path, outcome, signals)
        finally:
            rendezvous.forget()
    return top, outcome


def close_run(
    rank: RankInfo, run: Path, own: Path, outcome: Outcome, signals: StopSignals
) -> Outcome:
    """Merge the folders of all ranks and close the run; rank 0 does this."""
    rank_merge.wait_for_others(run, rank.world_size, outcome, signals)
    top = run_folder.RunFolder(run)
    ranks = rank_merge.merge_ranks(top, rank.world_size)
    ended = rank_merge.outcome_of(ranks, rank.world_size)
    assert ended is not None, "rank 0 has a folder"
    info = run_folder.RunFolder(own).read_info()
    own_figures, figures = info["summary"], [rank.summary for rank in ranks]
    measured = Measured(
        wall_s=own_figures.get("wall_s"),
        preparation_s=own_figures.get("preparation_s"),
        layers=own_figures.get("layers"),
        peak_memory_bytes=_sum_of_known(each.get("peak_memory_bytes") for each in figures),
        device_peak_memory_bytes=_sum_of_known(
            each.get("device_peak_memory_bytes") for each in figures
        ),
        absent=rank_merge.absent_of(info),
    )
    top.close(
        status=ended.status,
        reason=ended.reason,
        process=None,
        environment=info["environment"],
        instrument=info["instrument"],
        summary=summarize(run_reader.load_run(run), measured),
    )
    return ended


def _sum_of_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
