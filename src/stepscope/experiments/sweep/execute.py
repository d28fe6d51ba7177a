"""Make the trials of a sweep, one at a time, each in a process of its own.

A trial that dies is a result. One that was interrupted, or was under way when the sweep itself was
killed, has none and is made again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, Protocol

from stepscope.analyze.trial_metrics import metrics
from stepscope.errors import Interrupted
from stepscope.experiments.carry_out import Summarize
from stepscope.experiments.subjects import Attempt, Subject
from stepscope.experiments.supervise import Onlooker as RunOnlooker
from stepscope.records import reader, schema
from stepscope.records.sweep import SweepFolder, Trial, load_sweep


class Onlooker(RunOnlooker, Protocol):
    """Somebody who shows how a sweep goes, and the run that is under way in it."""

    def trying(self, trial: Trial, trials: int | None, left_s: float | None) -> None:
        """Learn which trial begins, of how many, and how long the rest will take, if known."""

    def tried(self, trial: Trial) -> None:
        """Learn what became of it."""


@dataclass(frozen=True)
class Bench:
    """Where trials are made: their record, what is tried, and who looks on."""

    folder: SweepFolder
    subject: Subject
    onlooker: Onlooker
    summarize: Summarize
    time_limit_s: float | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Keep the folder for this process, and close it however the trials end.

        Raises:
            RequestError: another process is at it.
            Interrupted: somebody asked to stop; what is done is kept.
        """
        with self.folder.held():
            self.folder.update_info(status=schema.RUNNING, reason=None, process=os.getpid())
            try:
                yield
            except (KeyboardInterrupt, Interrupted) as error:
                self.folder.close(status=schema.INTERRUPTED, reason="interrupted", process=None)
                raise Interrupted("interrupted") from error
            except BaseException as error:
                reason = f"{type(error).__name__}: {error}"
                self.folder.close(status=schema.FAILED, reason=reason, process=None)
                raise
            self.folder.close(status=schema.COMPLETED, process=None)

    def make_missing(self) -> None:
        """Make every trial of the plan that has no result yet.

        Raises:
            RequestError: one of them could only fail; then none is made.
        """
        sweep, clock = load_sweep(self.folder.path), _Clock()
        missing = [trial for trial in sweep.trials if trial.is_missing]
        for trial in missing:
            self.subject.check(trial.values)
        for number, trial in enumerate(missing):
            self.onlooker.trying(trial, len(sweep.trials), clock.left_s(missing[number:]))
            with clock.timing(trial):
                self.make(trial)

    def add(self, values: Mapping[str, Any], repeat: int) -> Trial:
        """Make a trial that was not planned, because of what the others told."""
        info = self.folder.read_info()
        trial = Trial(len(info["trials"]), dict(values), repeat)
        self.folder.write_info({**info, "trials": [*info["trials"], asdict(trial)]})
        self.onlooker.trying(trial, None, None)
        return self.make(trial)

    def make(self, trial: Trial) -> Trial:
        """Make one trial and note its result.

        Raises:
            Interrupted: somebody asked it to stop.
        """
        done, asked_to_stop = _finished_before(trial, self.folder), False
        if done is None:
            done, asked_to_stop = self._run(trial)
        self.folder.put(done)
        self.onlooker.tried(done)
        if asked_to_stop or done.status == schema.INTERRUPTED:
            raise Interrupted("interrupted")
        return done

    def _run(self, trial: Trial) -> tuple[Trial, bool]:
        """Run a trial; return it and whether somebody asked it to stop.

        One that was asked to and failed is no result: it is made again when the sweep goes on.
        """
        path = load_sweep(self.folder.path).folder_of(trial)
        shutil.rmtree(path, ignore_errors=True)  # what a killed sweep left of it
        trial = replace(trial, run=str(path.relative_to(self.folder.path.resolve())), reason=None)
        self.folder.put(replace(trial, status=schema.RUNNING))
        attempt = Attempt(path, self.onlooker, self.summarize, self.time_limit_s)
        outcome = self.subject.run(trial.values, attempt)
        recorded = (path / schema.RUN).is_file()
        cut_short = outcome.asked_to_stop and outcome.status != schema.COMPLETED
        done = replace(
            trial,
            status=schema.INTERRUPTED if cut_short else outcome.status,
            reason=outcome.reason,
            exit_code=outcome.exit_code,
            run=trial.run if recorded else None,
            metrics=metrics(reader.load_run(path)) if recorded else {},
        )
        return done, outcome.asked_to_stop


def _finished_before(trial: Trial, folder: SweepFolder) -> Trial | None:
    """Return a trial that had ended when the sweep was killed, just before that was noted."""
    if trial.run is None or not (folder.path / trial.run / schema.RUN).is_file():
        return None
    run = reader.load_run(folder.path / trial.run)
    if run.status != schema.COMPLETED:
        return None
    reason = run.info.get("reason")
    code = 0 if reason is None else 1
    return replace(trial, status=run.status, reason=reason, exit_code=code, metrics=metrics(run))


@dataclass
class _Clock:
    """How long trials took, by their settings: the best guess for those to come."""

    took_s: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def timing(self, trial: Trial) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.took_s.setdefault(str(trial.values), []).append(time.monotonic() - began)

    def left_s(self, trials: list[Trial]) -> float | None:
        if not self.took_s:
            return None
        all_s = fmean(each for taken in self.took_s.values() for each in taken)
        return sum(fmean(self.took_s.get(str(trial.values)) or [all_s]) for trial in trials)
