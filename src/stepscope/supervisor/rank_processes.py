"""The ranks of one training: where each one records, and how several are started.

Each rank has its own supervising parent and its own run folder, `ranks/<n>/`. Under a user's
torchrun, rank 0 creates the folder of the run and the other ranks learn its path through files
beside it. `supervisor.rank_merge` combines the ranks' tables into the run's.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.errors import RequestError
from stepscope.hardware.host import usable_cpus
from stepscope.processes.process_options import ProcessOptions
from stepscope.records import run_folder, schema
from stepscope.settings import RunSpec
from stepscope.supervisor import rank_merge
from stepscope.supervisor.child_supervisor import ChildWatch, Outcome, SupervisedProcess
from stepscope.supervisor.memory_guard import MemoryLimit
from stepscope.supervisor.rank_merge import GrowingTables
from stepscope.supervisor.train_child import (
    end_training,
    judge_training,
    start_training,
    training_process_of,
)
from stepscope.supervisor.warm_start import ForkServer

_WAIT_FOR_FOLDER_S = 120.0
_LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process, the world size, and the id of the training.

    `restarts` counts how often the launcher has started all of them again.
    """

    rank: int
    world: int
    meeting: str
    restarts: int = 0
    max_restarts: int = 0

    def find_run(self, out: Path, make: Callable[[], Path], *, goes_on: bool = False) -> Path:
        """Return the run's folder: made by rank 0, asked for by the others.

        One that `goes_on` after a restart is found again; otherwise each start has its own.
        """
        note = self._note(out, goes_on)
        if self.rank != 0:
            return self._ask(note)
        run = _read(note) if goes_on and self.restarts > 0 else None
        if run is None:
            note.unlink(missing_ok=True)
            run = make()
            _write(note, run)
        threading.Thread(target=self._answer, args=(note, run), daemon=True).start()
        return run

    def _ask(self, note: Path) -> Path:
        """Ask rank 0 by a file that only this process has made: an old answer is to another one."""
        asked = f"{self.rank}-{uuid.uuid4().hex}"
        question, answer = _question(note, asked), _answer_to(note, asked)
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            question.touch()
        except OSError as error:
            raise RequestError(
                f"cannot write into {note.parent}: {error.strerror}. "
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
            f"rank {self.rank} found no run folder of rank 0 in {note.parent} within "
            f"{_WAIT_FOR_FOLDER_S:.0f} s. All ranks need the same --out, on a shared file system."
        )

    def _answer(self, note: Path, run: Path) -> None:
        """Answer every question until each of the others has taken an answer away.

        A question of an earlier training, whose rank was killed, is answered for nobody.
        """
        answers: dict[str, list[Path]] = {str(rank): [] for rank in range(1, self.world)}
        while answers:
            # A shared folder may be out of reach for a moment: it is looked at again.
            with contextlib.suppress(OSError):
                if not note.exists():  # taken away by `forget`: the training is over
                    return
                for question in note.parent.glob(_question(note, "*").name):
                    asked = question.name.rpartition(".ask-")[2]
                    _write(_answer_to(note, asked), run)
                    question.unlink(missing_ok=True)
                    answers.get(asked.partition("-")[0], []).append(_answer_to(note, asked))
                for rank in list(answers):
                    if not all(answer.exists() for answer in answers[rank]):
                        del answers[rank]
            time.sleep(_LOOK_EVERY_S)

    def forget(self, out: Path, *, goes_on: bool = False) -> None:
        """Take the note away, and what nobody came for."""
        note = self._note(out, goes_on)
        for file in (note, *out.glob(f"{note.name}.*")):
            file.unlink(missing_ok=True)

    def _note(self, out: Path, goes_on: bool) -> Path:
        return out / f".meeting-{self.meeting}{'' if goes_on else f'-{self.restarts}'}"


def find_rank() -> RankInfo | None:
    """Return the rank of this process from torchrun's variables; None without torchrun."""
    told = os.environ
    try:
        rank, world = int(told.get("RANK", "")), int(told.get("WORLD_SIZE", ""))
    except ValueError:
        return None
    if world < 2:
        return None
    identity = told.get("TORCHELASTIC_RUN_ID", "none")
    if identity == "none":  # nobody named it; a port may change when all are started again
        identity = "/".join(told.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    restarts = int(told.get("TORCHELASTIC_RESTART_COUNT", "0"))
    meeting = hashlib.sha256(identity.encode()).hexdigest()[:12]
    most = int(told.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    return RankInfo(rank, world, meeting, restarts, most)


def _question(note: Path, asked: str) -> Path:
    return note.with_name(f"{note.name}.ask-{asked}")


def _answer_to(note: Path, asked: str) -> Path:
    return note.with_name(f"{note.name}.answer-{asked}")


def _write(file: Path, run: Path) -> None:
    # A rank 0 that is started again may meet the one before it, answering the same question.
    beside = file.with_name(f"{file.name}.{uuid.uuid4().hex}.new")
    beside.write_text(run.name, encoding="utf-8")
    beside.replace(file)


def _read(file: Path) -> Path | None:
    """Return the run that a note or an answer names; None where it is not there, or not yet."""
    try:
        run = file.parent / file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return run if (run / schema.RUN).is_file() else None


# --- `stepscope run --processes N`


_CUT_OFF = Outcome(schema.INTERRUPTED, "stopped before the training could save", 130)


def supervised_training(
    made: run_folder.RunFolder,
    spec: RunSpec,
    limit: MemoryLimit | None,
    options: ProcessOptions,
    time_limit_s: float | None = None,
    fork_server: ForkServer | None = None,
) -> SupervisedProcess:
    """Return the training of a folder's settings, in one process or several."""
    if spec.processes == 1:
        return training_process_of(
            made,
            limit,
            has_workers=spec.workers > 0,
            options=options,
            time_limit_s=time_limit_s,
            fork_server=fork_server,
        )
    return SupervisedProcess(
        functools.partial(_start, made, spec, limit, options),
        end_training,
        functools.partial(judge_run, made, spec.processes),
        memory_limit=limit,
        time_limit_s=time_limit_s,
        meanwhile=GrowingTables(made.path, spec.processes).look,
    )


def _start(
    made: run_folder.RunFolder,
    spec: RunSpec,
    limit: MemoryLimit | None,
    options: ProcessOptions,
    messages: int,
    origin_ns: int,
) -> subprocess.Popen[bytes]:
    launcher = [
        sys.executable,
        "-m",
        "stepscope.processes.torchrun_launcher",
        "--parent",
        str(os.getpid()),
    ]
    torchrun = ["--standalone", "--nproc-per-node", str(spec.processes)]
    rank = ["-m", "stepscope.supervisor.rank_supervisor", str(made.path.resolve())]
    rank += ["--messages", str(messages), "--origin-ns", str(origin_ns), *options.switches()]
    threads = spec.threads or max(1, (usable_cpus() or 1) // spec.processes)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    return start_training([*launcher, *torchrun, *rank], messages, limit, environment)


def judge_run(
    made: run_folder.RunFolder, world: int, watch: ChildWatch, returncode: int
) -> Outcome:
    """Merge the ranks' folders and return how the run ended."""
    rank_merge.wait_for_rest(made.path, world)
    gone = _CUT_OFF if watch.signals.stops > 1 else rank_merge.GONE
    outcome = rank_merge.outcome_of(rank_merge.put_together(made, world, gone), world)
    if outcome is not None and _was_for_memory(watch, outcome):
        # The word to stop that torch passes on to ranks does not say what for.
        outcome = replace(outcome, status=schema.OUT_OF_MEMORY) if watch.ready else None
    watch.outcome = outcome
    return judge_training(watch, returncode)


def _was_for_memory(watch: ChildWatch, outcome: Outcome) -> bool:
    is_asked_by_us = watch.memory.asked and not watch.signals.stops
    return is_asked_by_us and outcome.status == schema.INTERRUPTED


def require_one_process(spec: RunSpec, what: str) -> None:
    """Raise if several processes are requested where only one is possible.

    Raises:
        RequestError: several were asked for.
    """
    if spec.processes > 1:
        raise RequestError(
            f"processes: {what} wants 1, found {spec.processes}. Several processes train with "
            "`stepscope run` and `stepscope sweep`."
        )
