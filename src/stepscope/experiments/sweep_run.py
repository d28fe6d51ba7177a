"""Sweeps: settings tried in rounds, each trial in its own process, recorded so that it can resume.

`trial_order` plans the trials; a `TrialBench` makes those that are missing, through a runner
(`experiments.runners`). A trial that dies is a result. One that was interrupted, or was running
when the sweep itself was killed, is made again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from stepscope.analyze.sweep_summary import metrics
from stepscope.errors import Interrupted, RequestError
from stepscope.experiments.runners.runner import HERE, PlannedTrial, Runner
from stepscope.experiments.trial_order import plan_trials
from stepscope.experiments.workload import TrialRequest, Workload, workload_of
from stepscope.records import run_reader, schema
from stepscope.records.run_folder import remove_unfinished
from stepscope.records.sweep_folder import (
    Sweep,
    SweepFolder,
    Trial,
    command_of,
    create_sweep,
    load_sweep,
)
from stepscope.records.types import (
    RunnerPlace,
    ScalePlan,
    SearchPlan,
    SettingValue,
    SweepPlan,
    TrialMetrics,
)
from stepscope.supervisor.child_supervisor import Outcome, RunListener
from stepscope.supervisor.warm_start import ForkServer


class SweepListener(RunListener, Protocol):
    """Is notified of a sweep's progress and of the run under way in it."""

    def trying(self, trial: Trial, trials: int | None, left_s: float | None) -> None:
        """Receive the trial that starts, the number of trials, and the time left, if known."""

    def tried(self, trial: Trial) -> None:
        """Receive the result of a trial."""


@dataclass(frozen=True)
class TrialBench:
    """Where trials are made: their record, the workload, the listener and the runner.

    On this machine, built-in trainings are forked from one process that has imported torch.
    """

    folder: SweepFolder
    workload: Workload
    listener: SweepListener
    time_limit_s: float | None = None
    runner: Runner = HERE
    fork_server: ForkServer = field(default_factory=ForkServer)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the folder for this process, and close it however the trials end."""
        with self.folder.held(), self.fork_server:
            remove_unfinished(self.folder.path / "trials")
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
        """Make every planned trial without a result; none if one of them could only fail.

        The time left is estimated from the mean time of the trials so far.
        """
        trials, began_s = load_sweep(self.folder.path).trials, time.monotonic()
        missing = {trial.index: trial for trial in trials if trial.is_missing}
        planned = len(missing)
        self.runner.check(self.workload, [trial.values for trial in missing.values()])

        def show(trial: Trial) -> None:
            done, took_s = planned - len(missing), time.monotonic() - began_s
            left_s = len(missing) * took_s / done if done else None
            self.listener.trying(trial, len(trials), left_s)

        with closing(self._make(list(missing.values()), show)) as ended:
            for trial in ended:
                del missing[trial.index]

    def have(
        self,
        settings: Sequence[Mapping[str, SettingValue]],
        repeat: int,
        trials_planned: int | None = None,
        left_s: float | None = None,
    ) -> list[Trial]:
        """Return a trial of each setting in a round: a recorded one, or a new one.

        The number of trials and the time left are shown, if they are known.
        """
        trials = load_sweep(self.folder.path).trials
        wanted: dict[int, Trial] = {}
        for values in settings:
            known = (each for each in trials if (each.values, each.repeat) == (values, repeat))
            trial = next(known, None) or Trial(len(trials), dict(values), repeat)
            trials += [] if trial in trials else [trial]
            wanted[trial.index] = trial
        self.folder.update_info(trials=[trial.to_json() for trial in trials])
        missing = [trial for trial in wanted.values() if trial.is_missing]
        show = partial(self.listener.trying, trials=trials_planned, left_s=left_s)
        with closing(self._make(missing, show)) as ended:
            wanted |= {trial.index: trial for trial in ended}
        return list(wanted.values())

    def _make(
        self, trials: list[Trial], show: Callable[[Trial], None]
    ) -> Generator[Trial, None, None]:
        """Make trials and record their results; give each as soon as it has one."""
        sweep = load_sweep(self.folder.path)
        kinds = {each.repeat: each.node_kind for each in sweep.trials if not each.is_missing}
        planned_trials = [
            PlannedTrial(
                replace(trial, node=None, node_kind=None),  # it may have been begun elsewhere
                TrialRequest(
                    sweep.folder_of(trial), self.listener, self.time_limit_s, self.fork_server
                ),
                kinds.get(trial.repeat),
            )
            for trial in trials
        ]

        def begin(trial: Trial) -> None:
            show(trial)
            path = sweep.folder_of(trial)
            shutil.rmtree(path, ignore_errors=True)  # what a killed sweep left of it
            self.folder.put(
                replace(trial, status=schema.RUNNING, run=self._name(path), reason=None)
            )

        with closing(self.runner.run(self.workload, planned_trials, begin)) as ended:
            for trial, outcome in ended:
                done = self._judge(trial, outcome, sweep.folder_of(trial))
                self.folder.put(done)
                self.listener.tried(done)
                if outcome.asked_to_stop or done.status == schema.INTERRUPTED:
                    raise Interrupted("interrupted")
                yield done

    def _judge(self, trial: Trial, outcome: Outcome, path: Path) -> Trial:
        """Return a trial with its result.

        One that was asked to stop and failed has none: resuming the sweep makes it again.
        """
        recorded = (path / schema.RUN).is_file()
        return replace(
            trial,
            status=schema.INTERRUPTED if outcome.was_cut_short else outcome.status,
            reason=outcome.reason,
            exit_code=outcome.exit_code,
            run=self._name(path) if recorded else None,
            metrics=metrics(run_reader.load_run(path)) if recorded else TrialMetrics(),
        )

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder.path.resolve()))


RESUMABLE = ("sweep", "search", "scale")


class SweepInterrupted(Interrupted):
    """A sweep was asked to stop; its folder has the finished trials."""

    def __init__(self, folder: Path, kind: str = "sweep") -> None:
        again = f"stepscope {command_of(kind)} --resume {folder}"
        super().__init__(f"interrupted. Continue with: {again}")
        self.folder = folder


@dataclass(frozen=True)
class SweepRequest:
    """The settings to try and how often; `over` is how the user gave them.

    `on` records where trials are made; None is this machine.
    """

    settings: Sequence[Mapping[str, SettingValue]]
    repeats: int
    out: Path
    name: str
    kind: str = "sweep"
    over: Mapping[str, Sequence[SettingValue]] | None = None
    seed: int | None = None
    time_limit_s: float | None = None
    on: RunnerPlace | None = None


def start(
    workload: Workload,
    request: SweepRequest,
    listener: SweepListener,
    runner: Runner = HERE,
) -> Sweep:
    """Make a sweep folder and every trial in it; refuse settings that could only fail."""
    runner.check(workload, request.settings)
    folder = create(workload, request)
    return run_trials(TrialBench(folder, workload, listener, request.time_limit_s, runner))


def create(
    workload: Workload, request: SweepRequest, more: ScalePlan | SearchPlan | None = None
) -> SweepFolder:
    """Make a sweep folder with its planned trials; `more` is recorded by `scale` and `search`."""
    seed = secrets.randbits(32) if request.seed is None else request.seed
    planned = plan_trials(request.settings, request.repeats, seed) if request.settings else []
    plan = {
        "kind": request.kind,
        "directory": str(Path.cwd()),
        **workload.to_json(),
        "settings": [dict(values) for values in request.settings],
        "over": None if request.over is None else dict(request.over),
        "repeats": request.repeats,
        "seed": seed,
        "time_limit_s": request.time_limit_s,
        "on": request.on,
        **(more or {}),
    }
    return create_sweep(request.out, request.name, cast(SweepPlan, plan), planned)


def run_trials(
    bench: TrialBench, work: Callable[[TrialBench], None] = TrialBench.make_missing
) -> Sweep:
    """Do the work of an experiment on its bench, and return its record."""
    try:
        with bench.open():
            work(bench)
    except Interrupted:
        kind = bench.folder.read_info()["kind"]
        if kind not in RESUMABLE:
            raise
        raise SweepInterrupted(bench.folder.path, kind) from None
    return load_sweep(bench.folder.path)


def resume(path: Path, listener: SweepListener, runner: Runner = HERE) -> Sweep:
    """Make the trials of a sweep that are missing; a completed sweep is left as it is."""
    sweep = load_sweep(path)
    kind = str(sweep.info.get("kind"))
    if sweep.info.get("status") != schema.COMPLETED and kind != "sweep":
        command = command_of(kind)
        if kind in RESUMABLE:
            again = f"stepscope {command} --resume {sweep.path}"
            raise RequestError(f"{sweep.path} is of `stepscope {command}`. Resume it: {again}")
        raise RequestError(
            f"{sweep.path} is of `stepscope {command}`, which cannot be resumed. Start it again."
        )
    return go_on(sweep, listener, runner)


def go_on(
    sweep: Sweep,
    listener: SweepListener,
    runner: Runner = HERE,
    *,
    work: Callable[[TrialBench], None] = TrialBench.make_missing,
    workload: Workload | None = None,
) -> Sweep:
    """Do the missing work of an experiment, in the directory where it was started.

    A completed one is left as it is. Without a `workload`, the recorded one is run.
    """
    if sweep.info.get("status") == schema.COMPLETED:
        return sweep
    with working_in(sweep.info.get("directory")):
        workload = workload_of(sweep.info) if workload is None else workload
        folder, limit_s = SweepFolder(sweep.path), sweep.info.get("time_limit_s")
        return run_trials(TrialBench(folder, workload, listener, limit_s, runner), work)


@contextmanager
def working_in(directory: str | None) -> Iterator[None]:
    """Work where the sweep was started: its scripts and data may be named from there."""
    if directory is None:
        yield
        return
    before = Path.cwd()
    try:
        os.chdir(directory)
    except OSError as error:
        raise RequestError(
            f"cannot enter {directory}, where the sweep was started: {error.strerror}."
        ) from error
    try:
        yield
    finally:
        os.chdir(before)
