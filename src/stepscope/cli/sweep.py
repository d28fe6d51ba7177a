"""`stepscope sweep`: a grid of runs, each in its own process."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from stepscope.analyze.settings_of_sweep import rows_of
from stepscope.analyze.where_time_goes import summarize
from stepscope.cli.flags import SpecFlags
from stepscope.cli.report_at_end import leave_report
from stepscope.cli.runners import place_to_go_on, read_place, runner_at
from stepscope.cli.script_arguments import split_script
from stepscope.cli.subjects import count, named_settings, place_of, script_request
from stepscope.cli.without_launcher import refuse_launcher
from stepscope.errors import RequestError
from stepscope.experiments import sweep as sweeps
from stepscope.experiments.subjects import OwnScript, OwnTraining
from stepscope.experiments.sweep.plan import DEFAULT_REPEATS, grid, read_axes
from stepscope.records import schema
from stepscope.records.sweep import Sweep
from stepscope.report.sweep import SweepDisplay, print_sweep


def sweep(
    *command: str,
    settings: Annotated[SpecFlags | None, Parameter(name="*")] = None,
    over: Annotated[list[str] | None, Parameter(negative=())] = None,
    repeats: str | None = None,
    mode: str | None = None,
    time_limit: str | None = None,
    order_seed: str | None = None,
    on: str | None = None,
    address: str | None = None,
    mix_nodes: Annotated[bool, Parameter(negative=())] = False,
    resume: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Run every combination of some settings, in rounds, each trial in its own process.

    `stepscope sweep [SPEC.toml] [flags] --over KEY=V1,V2,…` varies a training of ours;
    `stepscope sweep --over workers=0,2,4 -- train.py ARGS` a script of your own.

    Parameters
    ----------
    command
        A TOML file of settings or, after --, a script and its arguments.
    over
        An axis and its values, KEY=V1,V2,…; once for each axis. A script's own flag is written
        arg:--lr=0.1,0.01.
    repeats
        How many rounds; every setting is run once in each. [default: 6]
    mode
        train, or load (drive the loader without training). [default: train]
    time_limit
        End a trial that takes more seconds than this.
    order_seed
        Seed of the random order of each round; recorded.
    on
        Who makes the trials: here, one at a time, or ray, one at a time on each node of a cluster.
        [default: here]
    address
        The Ray cluster, HOST:PORT. [default: auto, the one that this machine is in]
    mix_nodes
        Compare trials also where their nodes are of different kinds.
    resume
        Go on with a sweep that was stopped: its folder, and no flag but --on and --address.
    json
        Print sweep.json, and nothing else, on standard output.
    """
    refuse_launcher("sweep")
    asked: dict[str, Any] = dict(settings or {})
    try:
        with SweepDisplay(Console(file=sys.stderr)) as display:
            if resume is not None:
                others = [*asked, *command, *filter(None, (over, repeats, mode, time_limit))]
                if others or order_seed is not None:
                    raise RequestError(
                        "resume: takes no other flag: the sweep's folder knows them."
                    )
                place = place_to_go_on(resume, on, address, mix_nodes)
                with runner_at(place) as runner:
                    done = sweeps.resume(resume, display, summarize, runner)
            else:
                subject = _subject(command, asked, mode)
                place = read_place(on, address, mix_nodes)
                axes = read_axes(over or [], of_script=isinstance(subject, OwnScript))
                out, name = place_of(subject, f"sweep-{'-'.join(axes)}")
                request = sweeps.Request(
                    grid(axes),
                    DEFAULT_REPEATS if repeats is None else count("repeats", repeats),
                    out=out,
                    name=name,
                    over=axes,
                    seed=None if order_seed is None else count("order_seed", order_seed),
                    time_limit_s=None if time_limit is None else _seconds(time_limit),
                    on=place,
                )
                with runner_at(place) as runner:
                    done = sweeps.start(subject, request, display, summarize, runner)
    except sweeps.SweepInterrupted as stopped:
        leave_report(stopped.folder, Console(file=sys.stderr))
        raise
    if json:
        print(dumps({**done.info, "rows": rows_of(done), "path": str(done.path)}))
    else:
        print_sweep(Console(), done)
    leave_report(done.path, Console(file=sys.stderr) if json else Console())
    return _exit_code(done)


def _subject(
    words: tuple[str, ...], asked: dict[str, Any], mode: str | None
) -> OwnTraining | OwnScript:
    if mode not in (None, "train", "load"):
        raise RequestError(f"mode: wanted train or load, found {mode}.")
    ours, script = split_script(words)
    if script is None:
        return OwnTraining(named_settings(ours, asked), "load" if mode == "load" else "train")
    if mode == "load":
        raise RequestError("mode: only a training of ours can be loaded without training.")
    return OwnScript(script_request(ours, script, asked))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise RequestError(f"time_limit: wanted seconds above 0, found {text!r}.")
    return seconds


def _exit_code(done: Sweep) -> int:
    """0 where any trial gave a result to compare; else what the first one failed with."""
    if any(trial.status == schema.COMPLETED for trial in done.trials):
        return 0
    return done.trials[0].exit_code or 1
