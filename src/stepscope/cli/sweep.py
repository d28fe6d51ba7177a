"""`stepscope sweep`: a grid of runs, each in its own process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from stepscope.analyze.comparison import compare_settings
from stepscope.analyze.sweep_summary import rows_of
from stepscope.cli.end_of_run import close_trials, display_of_trials, refuse_flags
from stepscope.cli.script_arguments import MARK, refuse_launcher
from stepscope.cli.settings_flags import SettingsToo, SpecFlags, count, place_of, workload_of_words
from stepscope.cli.streams import AsJson, Switch
from stepscope.errors import RequestError, nearest
from stepscope.experiments import sweep_run
from stepscope.experiments.runners.runner import HERE, Here, Runner
from stepscope.experiments.trial_order import DEFAULT_REPEATS, grid, read_axes
from stepscope.experiments.workload import ScriptWorkload, TrainingWorkload
from stepscope.records import schema
from stepscope.records.sweep_folder import load_sweep
from stepscope.records.types import RunnerPlace, SweepAnswer
from stepscope.report.terminal.sweep_table import SweepDisplay, print_sweep

# --- Runners: `--on here` or `--on ray`


_KNOWN = ("here", "ray")
_AUTO = "auto"


def read_place(on: str | None, address: str | None, mix_nodes: bool) -> RunnerPlace | None:
    """Return where trials run, as it is recorded; None is this machine.

    Raises:
        RequestError: the runner is unknown, or a flag belongs to another one.
    """
    if on is not None and on not in _KNOWN:
        raise RequestError(f"on: wanted here or ray, found {on!r}.{nearest(on, _KNOWN)}")
    if on == "ray":
        named = None if address == _AUTO else address
        cluster = named or os.environ.get("RAY_ADDRESS") or _AUTO
        return {"runner": "ray", "address": cluster, "mix_nodes": mix_nodes}
    for flag, given in (("address", address is not None), ("mix_nodes", mix_nodes)):
        if given:
            raise RequestError(f"{flag}: needs --on ray.")
    return None


def place_to_go_on(
    folder: Path, on: str | None, address: str | None, mix_nodes: bool
) -> RunnerPlace | None:
    """Return where a sweep is resumed: as before, unless flags name another place.

    If trials ran on a cluster before, this machine counts as one of its nodes.
    """
    sweep = load_sweep(folder)
    if on is None and address is None and not mix_nodes:
        done = sweep.info.get("status") == schema.COMPLETED
        recorded: RunnerPlace | None = None if done else sweep.info.get("on")
        return recorded
    begun_elsewhere = bool(sweep.info.get("on"))
    place = read_place(on or ("ray" if begun_elsewhere else None), address, mix_nodes)
    return {"runner": "here"} if place is None and begun_elsewhere else place


@contextmanager
def runner_at(place: RunnerPlace | None) -> Iterator[Runner]:
    """Return the runner for a place.

    Raises:
        RequestError: this version does not know the recorded place.
        MachineError: the cluster does not answer.
    """
    if place is None:
        yield HERE
    elif place.get("runner") == "here":
        yield Here(among_others=True)
    elif place.get("runner") == "ray":
        from stepscope.experiments.runners.ray_runner import on_ray

        with on_ray(place["address"], mix_nodes=bool(place.get("mix_nodes"))) as runner:
            yield runner
    else:
        raise RequestError(
            f"the sweep was run on {place.get('runner')!r}, which this version of stepscope does "
            "not know. Update stepscope, or choose another place with --on."
        )


def sweep(
    *command: str,
    settings: SettingsToo = None,
    over: Annotated[list[str] | None, Parameter(negative=())] = None,
    repeats: str | None = None,
    mode: str | None = None,
    time_limit: float | None = None,
    order_seed: str | None = None,
    on: str | None = None,
    address: str | None = None,
    mix_nodes: Switch = False,
    resume: Path | None = None,
    json: AsJson = False,
) -> int:
    """Run every combination of some settings, in rounds, each trial in its own process.

    `stepscope sweep [SPEC.toml] [flags] --over KEY=V1,V2,…` varies the training of a built-in
    model, `stepscope sweep --over workers=0,2,4 -- train.py ARGS` your own script.

    Parameters
    ----------
    command
        A TOML file of settings or, after --, a script and its arguments.
    over
        A setting to vary and its values, KEY=V1,V2,…; repeat it to vary several. A flag of
        the script is written arg:--lr=0.1,0.01.
    repeats
        How many times to run each combination. [default: 6]
    mode
        train: train; load: only iterate over the loader. [default: train]
    time_limit
        End each run after this many seconds.
    order_seed
        Seed of the random order of runs; recorded with the sweep.
    on
        here: on this machine; ray: on a Ray cluster. Each machine runs one trial at a time.
        [default: here]
    address
        The Ray cluster, HOST:PORT. [default: auto, the cluster of this machine]
    mix_nodes
        Compare runs even if they ran on different kinds of nodes.
    resume
        Continue the stopped sweep in this folder. Only --on and --address may be added.
    """
    refuse_launcher("sweep")
    with display_of_trials(SweepDisplay) as display:
        if resume is not None:
            refuse_flags(settings, command, over, repeats, mode, time_limit, order_seed)
            with runner_at(place_to_go_on(resume, on, address, mix_nodes)) as runner:
                done = sweep_run.resume(resume, display, runner)
        else:
            if time_limit is not None and not 0 < time_limit < float("inf"):
                raise RequestError(f"time_limit: wanted seconds above 0, found {time_limit:g}.")
            workload = _workload(command, settings, mode)
            place = read_place(on, address, mix_nodes)
            axes = read_axes(over or [], of_script=isinstance(workload, ScriptWorkload))
            out, name = place_of(workload, "sweep", "-".join(axes))
            request = sweep_run.SweepRequest(
                grid(axes),
                count("repeats", repeats, DEFAULT_REPEATS),
                out=out,
                name=name,
                over=axes,
                seed=count("order_seed", order_seed, None),
                time_limit_s=time_limit,
                on=place,
            )
            with runner_at(place) as runner:
                done = sweep_run.start(workload, request, display, runner)
    compared = compare_settings(done)
    answer: SweepAnswer = {
        **done.info,
        "verdict": None if compared is None else compared["verdict"],
        "rows": rows_of(done),
        "path": str(done.path),
    }
    close_trials(answer, done, print_sweep, as_json=json)
    if any(trial.status == schema.COMPLETED for trial in done.trials):
        return 0
    return done.trials[0].exit_code or 1


def _workload(
    words: tuple[str, ...], settings: SpecFlags | None, mode: str | None
) -> TrainingWorkload | ScriptWorkload:
    if mode not in (None, "train", "load"):
        raise RequestError(f"mode: wanted train or load, found {mode}.")
    if mode == "load" and MARK in words:
        raise RequestError("mode: load does not apply to a script. Leave --mode out.")
    return workload_of_words(words, settings, "load" if mode == "load" else "train")
