"""Sweeps: settings tried in rounds, each trial in its own process, with a record that survives.

plan      which trials, in which order
execute   those that are missing, by whoever runs them (`experiments.runners`)
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import Interrupted, RequestError
from stepscope.experiments.carry_out import Summarize
from stepscope.experiments.runners import Runner
from stepscope.experiments.runners.here import HERE
from stepscope.experiments.subjects import Subject, subject_of
from stepscope.experiments.sweep.execute import Bench, Onlooker
from stepscope.experiments.sweep.plan import plan_trials
from stepscope.records import schema
from stepscope.records.sweep import Sweep, SweepFolder, create_sweep, load_sweep

_GO_ON_BY_THEMSELVES = ("search", "scale")


class SweepInterrupted(Interrupted):
    """Somebody asked a sweep to stop; what is done is in its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"interrupted; go on with: stepscope sweep --resume {folder}")
        self.folder = folder


@dataclass(frozen=True)
class Request:
    """Which settings are tried how often; `over` is how somebody wrote them down.

    `on` says for the record where trials are made; None is this machine.
    """

    settings: Sequence[Mapping[str, Any]]
    repeats: int
    out: Path
    name: str
    kind: str = "sweep"
    over: Mapping[str, Sequence[Any]] | None = None
    seed: int | None = None
    time_limit_s: float | None = None
    on: Mapping[str, Any] | None = None


def start(
    subject: Subject,
    request: Request,
    onlooker: Onlooker,
    summarize: Summarize,
    runner: Runner = HERE,
) -> Sweep:
    """Make a sweep folder and every trial in it.

    Raises:
        RequestError: a setting could only fail; then nothing was begun.
        SweepInterrupted: somebody asked it to stop.
    """
    runner.check(subject, request.settings)
    seed = secrets.randbits(32) if request.seed is None else request.seed
    trials = plan_trials(request.settings, request.repeats, seed)
    asked = {
        "kind": request.kind,
        "directory": str(Path.cwd()),
        **subject.to_json(),
        "settings": [dict(values) for values in request.settings],
        "over": None if request.over is None else dict(request.over),
        "repeats": request.repeats,
        "seed": seed,
        "time_limit_s": request.time_limit_s,
        "on": None if request.on is None else dict(request.on),
    }
    made = create_sweep(request.out, request.name, asked, trials)
    return _carry_out(Bench(made, subject, onlooker, summarize, request.time_limit_s, runner))


def resume(path: Path, onlooker: Onlooker, summarize: Summarize, runner: Runner = HERE) -> Sweep:
    """Make the trials of a sweep that are missing; a completed sweep is left as it is."""
    sweep = load_sweep(path)
    if sweep.info.get("status") == schema.COMPLETED:
        return sweep
    if sweep.info.get("kind") != "sweep":
        kind = sweep.info.get("kind")
        if kind in _GO_ON_BY_THEMSELVES:
            again = f"stepscope {kind} --resume {sweep.path}"
            raise RequestError(f"{sweep.path} is of `stepscope {kind}`. Go on with: {again}")
        raise RequestError(f"{sweep.path} is of `stepscope {kind}`, which begins anew every time.")
    with working_in(sweep.info.get("directory")):
        return go_on(sweep, subject_of(sweep.info), onlooker, summarize, runner)


def go_on(
    sweep: Sweep,
    subject: Subject,
    onlooker: Onlooker,
    summarize: Summarize,
    runner: Runner = HERE,
) -> Sweep:
    """Make the trials of a sweep that are missing, whoever began it; a completed one is left."""
    if sweep.info.get("status") == schema.COMPLETED:
        return sweep
    limit_s = sweep.info.get("time_limit_s")
    folder = SweepFolder(sweep.path)
    return _carry_out(Bench(folder, subject, onlooker, summarize, limit_s, runner))


@contextlib.contextmanager
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


def _carry_out(bench: Bench) -> Sweep:
    try:
        with bench.open():
            bench.make_missing()
    except Interrupted:
        if bench.folder.read_info()["kind"] != "sweep":
            raise
        raise SweepInterrupted(bench.folder.path) from None
    return load_sweep(bench.folder.path)
