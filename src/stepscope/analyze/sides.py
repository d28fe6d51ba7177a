"""What is compared: a run, a set of runs, or a setting of a sweep, named on the command line.

An argument of `stepscope compare` is one of these:

    runs/a                    a run
    runs/a,runs/b,runs/c      a set of runs
    runs                      a set: every run folder in it
    runs/sweep                every setting of a sweep, each a side
    runs/sweep:workers=2      one setting of a sweep
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.analyze.node_kinds import by_node_kind
from stepscope.analyze.setting_names import find_setting, name_of, settings_of
from stepscope.analyze.throughput import Throughput, rate_of_trial, throughput_of
from stepscope.errors import RequestError
from stepscope.records import schema
from stepscope.records.reader import Run, load_run
from stepscope.records.sweep import Sweep, Trial, is_sweep, load_sweep

_WHAT_CAN_BE_COMPARED = (
    "Give run folders, sets of runs (a,b,c or a folder of runs), a sweep folder, or settings of a "
    "sweep such as runs/latest:workers=2."
)


@dataclass(frozen=True)
class Measured:
    """One run of a side: its record where there is one, its throughput, its round in a sweep."""

    samples_per_s: float
    basis: str
    run: Run | None = None
    round: int | None = None
    metrics: dict[str, Any] | None = None


@dataclass(frozen=True)
class Side:
    """What stands on one side of a comparison. `left_out` says which runs do not count, and why."""

    name: str
    runs: tuple[Measured, ...]
    left_out: tuple[str, ...] = ()
    sweep: Sweep | None = None
    values: dict[str, Any] | None = None

    @property
    def rates(self) -> list[float]:
        """List the throughputs, one a run."""
        return [each.samples_per_s for each in self.runs]

    @property
    def rate_by_round(self) -> dict[int, float]:
        """Give the throughput of each round of a sweep."""
        return {each.round: each.samples_per_s for each in self.runs if each.round is not None}


def in_rounds(one: Side, other: Side) -> bool:
    """Say whether two sides are settings of the same sweep, and so were run in rounds."""
    return bool(one.sweep and other.sweep and one.sweep.path == other.sweep.path)


def read_sides(arguments: Sequence[str]) -> list[Side]:
    """Read what the arguments name, in their order; a sweep gives a side for each setting.

    Raises:
        RequestError: one names nothing that could be compared, or there are fewer than two sides.
    """
    sides = [side for argument in arguments for side in _sides_of(argument)]
    if len(sides) < 2:
        found = sides[0].name if sides else "none"
        raise RequestError(f"wanted two or more to compare, found {found}. {_WHAT_CAN_BE_COMPARED}")
    if len(arguments) == 1:  # a sweep's: its name would say nothing
        return [replace(side, name=name_of(side.values or {})) for side in sides]
    return sides


def _sides_of(argument: str) -> list[Side]:
    path = Path(argument)
    if argument and _is_there(path):  # an empty one, of a variable that is unset, is no folder
        return _sides_in(path, argument)
    # A colon may be a part of the folder's name, and of the setting's: arg:--lr=0.1.
    for end in (place for place, letter in enumerate(argument) if letter == ":"):
        folder = Path(argument[:end])
        if _is_there(folder) and is_sweep(folder):
            sweep = _sweep_in(folder)
            return [_side_of_setting(argument, sweep, find_setting(sweep, argument[end + 1 :]))]
    parts = [part for part in argument.split(",") if part]
    if len(parts) > 1:
        name = f"{Path(parts[0]).name} and {len(parts) - 1} more"
        return [_side_of_runs(name, [load_run(part) for part in parts])]
    raise RequestError(f"there is nothing to read at {argument!r}. {_WHAT_CAN_BE_COMPARED}")


def _is_there(path: Path) -> bool:
    """Say whether something is there; a long list of runs is not even a possible file name."""
    try:
        return path.exists()
    except OSError:
        return False


def _sides_in(path: Path, argument: str) -> list[Side]:
    folder = path.parent if path.name in (schema.RUN, schema.SWEEP) else path
    if is_sweep(folder):
        sweep = _sweep_in(folder)
        settings = settings_of(sweep)
        return [_side_of_setting(f"{argument}:{name_of(each)}", sweep, each) for each in settings]
    if (folder / schema.RUN).exists():
        return [_side_of_runs(argument, [load_run(folder)])]
    within = sorted(file.parent for file in folder.glob(f"*/{schema.RUN}"))
    runs = [load_run(each) for each in within if not each.is_symlink()]  # `latest` is one of them
    if not runs:
        raise RequestError(
            f"{argument} is neither a run nor a sweep folder, and has no run folders in it. "
            f"{_WHAT_CAN_BE_COMPARED}"
        )
    return [_side_of_runs(argument, runs)]


def _sweep_in(folder: Path) -> Sweep:
    """Open a sweep whose trials are alike but for their settings.

    Raises:
        RequestError: they are not.
    """
    sweep = load_sweep(folder)
    if sweep.info.get("kind") == "workers":
        raise RequestError(
            f"{folder} is of `stepscope workers`, whose trials have several lengths and do not "
            "compare; what they tell is in its own answer. Trials that compare are made by "
            "`stepscope sweep --over workers=0,1,2`."
        )
    return by_node_kind(sweep)


def _side_of_runs(name: str, runs: Sequence[Run]) -> Side:
    paths = [run.path for run in runs]
    for path in paths:
        if paths.count(path) > 1:
            raise RequestError(
                f"{path.name} is named more than once in {name}. A run counts once: it is the unit."
            )
    counted, left_out = [], []
    for run in runs:
        rate = throughput_of(run)
        if run.status != schema.COMPLETED:
            left_out.append(f"{run.path.name} is left out: {_how_it_stands(run.info)}")
        elif rate.samples_per_s is None:
            left_out.append(f"{run.path.name} is left out: no throughput: {rate.basis}")
        else:
            counted.append(Measured(rate.samples_per_s, rate.basis, run))
    return Side(name, tuple(counted), tuple(left_out))


def _side_of_setting(name: str, sweep: Sweep, values: dict[str, Any]) -> Side:
    counted, left_out = [], []
    trials = [trial for trial in sweep.trials if trial.values == values]
    for trial in sorted(trials, key=lambda trial: trial.repeat):
        measured = _measured(sweep, trial)
        if isinstance(measured, Measured):
            counted.append(measured)
        else:
            left_out.append(f"round {trial.repeat} is left out: {measured}")
    return Side(name, tuple(counted), tuple(left_out), sweep, values)


def _measured(sweep: Sweep, trial: Trial) -> Measured | str:
    """Return a trial's figures, or why there are none."""
    if trial.status != schema.COMPLETED:
        return _how_it_stands(vars(trial))
    run = _run_of(sweep, trial)
    rate, basis = rate_of_trial(trial.metrics)
    if rate is None:
        rate, basis = throughput_of(run) if run else Throughput(None, "its record is gone")
    if rate is None:
        return f"no throughput: {basis}"
    return Measured(rate, basis, run, trial.repeat, trial.metrics)


def _run_of(sweep: Sweep, trial: Trial) -> Run | None:
    """Open a trial's run, where it is still there."""
    folder = sweep.folder_of(trial)
    return load_run(folder) if (folder / schema.RUN).exists() else None


def _how_it_stands(record: dict[str, Any]) -> str:
    status = str(record.get("status")).replace("_", " ")
    if status == schema.RUNNING:
        return "still running, or never closed"
    reason = record.get("reason")
    return f"{status} ({reason})" if reason else status
