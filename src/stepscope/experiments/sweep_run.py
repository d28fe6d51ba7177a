"""Sweeps: settings tried in rounds, each trial in its own process, recorded so that it can resume.

`trial_order` plans which trials run in which order; a `TrialBench` makes those that are missing,
through a runner (`experiments.runners`). A trial that dies is a result. One that was interrupted,
or was under way when the sweep itself was killed, is made again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
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

Show = Callable[[Trial], None]


class SweepListener(RunListener, Protocol):
    """Is notified of a sweep's progress and of the run under way in it."""

    def trying(self, trial: Trial, trials: int | None, left_s: float | None) -> None:
        """Receive the trial that starts, the number of trials, and the time left, if known."""

    def tried(self, trial: Trial) -> None:
        """Receive the result of a trial."""


@dataclass(frozen=True)
class TrialBench:
    """Where trials are made: their record, what is tried, who looks on, and who makes them.

    On this machine, trainings of ours are forked from one process that has torch imported. What
    makes trials raises `Interrupted` when a stop was requested.
    """

    folder: SweepFolder
    workload: Workload
    listener: SweepListener
    time_limit_s: float | None = None
    runner: Runner = HERE
    fork_server: ForkServer = field(default_factory=ForkServer)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Keep the folder for this process, and close it however the trials end.

        Raises:
            RequestError: another process is at it.
            Interrupted: a stop was requested; finished trials are kept.
        """
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
        """Make every trial of the plan that has no result yet.

        Raises:
            RequestError: one of them could only fail; then none is made.
        """
        sweep, clock = load_sweep(self.folder.path), _TrialClock()
        missing = {trial.index: trial for trial in sweep.trials if trial.is_missing}
        self.runner.check(self.workload, [trial.values for trial in missing.values()])

        def show(trial: Trial) -> None:
            self.listener.trying(trial, len(sweep.trials), clock.left_s(missing.values()))
            clock.begin(trial)

        with closing(self._make_all(list(missing.values()), show)) as ended:
            for trial in ended:
                clock.end(trial)
                del missing[trial.index]

    def add(self, values: Mapping[str, SettingValue], repeat: int) -> Trial:
        """Make a trial that was not planned, because of the results of others."""
        return self._make_unplanned([Trial(len(self._trials()), dict(values), repeat)])[0]

    def have(self, settings: Sequence[Mapping[str, SettingValue]], repeat: int) -> list[Trial]:
        """Return a trial of each of some settings: recorded already, or made now."""
        recorded = self._trials()
        wanted, planned = [], len(recorded)
        for values in settings:
            known = (each for each in recorded if (each.values, each.repeat) == (values, repeat))
            trial = next(known, None) or Trial(planned, dict(values), repeat)
            planned = max(planned, trial.index + 1)
            wanted.append(trial)
        return self._make_unplanned(wanted)

    def _trials(self) -> list[Trial]:
        return load_sweep(self.folder.path).trials

    def _make_unplanned(self, wanted: list[Trial]) -> list[Trial]:
        """Plan those of some trials that are not planned yet, and make those without a result."""
        info = self.folder.read_info()
        new = [trial.to_json() for trial in wanted if trial.index >= len(info["trials"])]
        if new:
            self.folder.write_info({**info, "trials": [*info["trials"], *new]})
        missing = [trial for trial in wanted if trial.is_missing]
        with closing(self._make_all(missing, self._show_begin)) as ended:
            made = {trial.index: trial for trial in ended}
        return [made.get(trial.index, trial) for trial in wanted]

    def _show_begin(self, trial: Trial) -> None:
        self.listener.trying(trial, None, None)

    def _make_all(self, trials: list[Trial], show: Show) -> Generator[Trial, None, None]:
        """Make trials and note their results; give each as soon as it has one."""
        waiting = []
        for trial in trials:
            done = _finished_before(trial, self.folder)
            if done is None:
                waiting.append(trial)
            else:
                show(trial)
                yield self._note(done)
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
            for trial in waiting
        ]

        def begin(trial: Trial) -> None:
            show(trial)
            self._begin(trial)

        with closing(self.runner.run(self.workload, planned_trials, begin)) as ended:
            for trial, outcome in ended:
                done = self._note(self._judge(trial, outcome))
                if outcome.asked_to_stop or done.status == schema.INTERRUPTED:
                    raise Interrupted("interrupted")
                yield done

    def _begin(self, trial: Trial) -> None:
        """Make room for a trial's record, and note that it is under way."""
        path = load_sweep(self.folder.path).folder_of(trial)
        shutil.rmtree(path, ignore_errors=True)  # what a killed sweep left of it
        self.folder.put(replace(trial, status=schema.RUNNING, run=self._name(path), reason=None))

    def _judge(self, trial: Trial, outcome: Outcome) -> Trial:
        """Say what came of a trial.

        One that was asked to stop and failed has no result: resuming the sweep makes it again.
        """
        path = load_sweep(self.folder.path).folder_of(trial)
        recorded = (path / schema.RUN).is_file()
        cut_short = outcome.asked_to_stop and outcome.status != schema.COMPLETED
        return replace(
            trial,
            status=schema.INTERRUPTED if cut_short else outcome.status,
            reason=outcome.reason,
            exit_code=outcome.exit_code,
            run=self._name(path) if recorded else None,
            metrics=metrics(run_reader.load_run(path)) if recorded else TrialMetrics(),
        )

    def _note(self, trial: Trial) -> Trial:
        self.folder.put(trial)
        self.listener.tried(trial)
        return trial

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder.path.resolve()))


def _finished_before(trial: Trial, folder: SweepFolder) -> Trial | None:
    """Return a trial that had ended when the sweep was killed, just before that was noted."""
    if trial.run is None or not (folder.path / trial.run / schema.RUN).is_file():
        return None
    run = run_reader.load_run(folder.path / trial.run)
    if run.status != schema.COMPLETED:
        return None
    reason = run.info.get("reason")
    code = 0 if reason is None else 1
    return replace(trial, status=run.status, reason=reason, exit_code=code, metrics=metrics(run))


@dataclass
class _TrialClock:
    """How long trials took, by their settings: the best guess for those to come."""

    took_s: dict[str, list[float]] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)

    def begin(self, trial: Trial) -> None:
        self.began[trial.index] = time.monotonic()

    def end(self, trial: Trial) -> None:
        took_s = time.monotonic() - self.began.pop(trial.index)
        self.took_s.setdefault(str(trial.values), []).append(took_s)

    def left_s(self, trials: Iterable[Trial]) -> float | None:
        """Guess how long trials take, of which as many go on at once as now."""
        if not self.took_s:
            return None
        all_s = fmean(each for taken in self.took_s.values() for each in taken)
        work_s = sum(fmean(self.took_s.get(str(trial.values)) or [all_s]) for trial in trials)
        return work_s / (len(self.began) + 1)


RESUMABLE = ("sweep", "search", "scale")


class SweepInterrupted(Interrupted):
    """A sweep was asked to stop; finished trials are in its folder."""

    def __init__(self, folder: Path, kind: str = "sweep") -> None:
        again = f"stepscope {command_of(kind)} --resume {folder}"
        super().__init__(f"interrupted; go on with: {again}")
        self.folder = folder


@dataclass(frozen=True)
class SweepRequest:
    """The settings to try and how often; `over` is how the user gave them.

    `on` says for the record where trials are made; None is this machine.
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
    """Make a sweep folder and every trial in it.

    Raises:
        RequestError: a setting could only fail; then nothing was begun.
        SweepInterrupted: a stop was requested.
    """
    runner.check(workload, request.settings)
    folder = create(workload, request)
    return run_trials(TrialBench(folder, workload, listener, request.time_limit_s, runner))


def create(
    workload: Workload, request: SweepRequest, more: ScalePlan | SearchPlan | None = None
) -> SweepFolder:
    """Make a sweep folder with the trials that are planned, in their order.

    `more` is what `stepscope scale` and `search` record besides.
    """
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
    """Do the work of an experiment on its bench, and return its record.

    Raises:
        SweepInterrupted: a stop was requested, and the experiment can be resumed.
    """
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
            raise RequestError(f"{sweep.path} is of `stepscope {command}`. Go on with: {again}")
        raise RequestError(
            f"{sweep.path} is of `stepscope {command}`, which begins anew every time."
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
    """Do what is missing of an experiment, in the directory that it was begun in.

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
    """Work where the sweep was begun: its scripts and data may be named from there."""
    if directory is None:
        yield
        return
    before = Path.cwd()
    try:
        os.chdir(directory)
    except OSError as error:
        raise RequestError(
            f"the sweep was begun in {directory}, which cannot be entered: {error.strerror}."
        ) from error
    try:
        yield
    finally:
        os.chdir(before)
