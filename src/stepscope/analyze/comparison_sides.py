"""What is compared: a run, a set of runs, or a setting of a sweep, named on the command line.

An argument of `stepscope compare` is one of these:

    runs/a                    a run
    runs/a,runs/b,runs/c      a set of runs
    runs                      a set: every run folder in it
    runs/sweep                every setting of a sweep, each a side
    runs/sweep:workers=2      one setting of a sweep
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

from stepscope.analyze.throughput import Throughput, rate_of_trial, throughput_of
from stepscope.errors import RequestError, nearest
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run
from stepscope.records.sweep_folder import Sweep, Trial, is_sweep, load_sweep
from stepscope.records.types import RecordedSpec, Setting, Summary, TrialMetrics
from stepscope.stats.intervals import Interval, interval_of

# --- Settings of a sweep


def settings_of(sweep: Sweep) -> list[Setting]:
    """List the settings of a sweep in the order in which they were requested."""
    order = sweep.info.get("settings") or []
    found: list[Setting] = []
    for trial in sweep.trials:
        if trial.values not in found:
            found.append(trial.values)
    return sorted(found, key=lambda each: order.index(each) if each in order else len(order))


def find_setting(sweep: Sweep, text: str) -> Setting:
    """Return the setting that `workers=2,batch_size=16` names."""
    settings = settings_of(sweep)
    axes = {axis for values in settings for axis in values}
    matching = settings
    for part in text.split(","):
        axis, _, value = part.partition("=")
        axis = axis if axis in axes else axis.replace("-", "_")
        if axis not in axes:
            raise RequestError(f"{sweep.path} has no setting {axis!r}.{nearest(axis, axes)}")
        matching = [each for each in matching if as_text(each.get(axis)) == value.strip()]
    if len(matching) == 1:
        return matching[0]
    found = len(matching) or "none"
    listed = "; ".join(map(name_of, matching or settings))
    raise RequestError(f"wanted one setting of {sweep.path}, {text!r} matches {found}: {listed}.")


def name_of(values: RecordedSpec) -> str:
    """Return the name of a setting: `workers=2,batch_size=16`."""
    return ",".join(f"{axis}={as_text(value)}" for axis, value in values.items())


def as_text(value: object) -> str:
    """Return a value as it is typed on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- Kinds of node


NODE = "node"
_NOT_YET = "none yet"
_OWN_MACHINE = "the machine that started the sweep"


def kinds_of(sweep: Sweep) -> dict[str, str]:
    """Return a letter for each kind of node; {} if there is one kind, or nodes were to be mixed."""
    found = (_kind_of(trial) for trial in sweep.trials)
    kinds = dict.fromkeys(kind for kind in found if kind is not None)
    place = sweep.info.get("on")
    if len(kinds) < 2 or (place and place.get("mix_nodes")):
        return {}
    return dict(zip(ascii_uppercase, kinds, strict=False))


def by_node_kind(sweep: Sweep) -> Sweep:
    """Add the kind of node to the settings of each trial, as the setting `node`."""
    kinds = kinds_of(sweep)
    if not kinds:
        return sweep
    letters: dict[str | None, str] = {kind: letter for letter, kind in kinds.items()}
    letters[None] = _NOT_YET
    trials = [
        replace(trial, values={**trial.values, NODE: letters[_kind_of(trial)]}).to_json()
        for trial in sweep.trials
    ]
    settings: list[Setting] = [
        {**values, NODE: letter}
        for letter in [*kinds, _NOT_YET]
        for values in sweep.info.get("settings") or []
    ]
    return replace(sweep, info={**sweep.info, "trials": trials, "settings": settings})


def _kind_of(trial: Trial) -> str | None:
    """Return the kind of node that ran a trial; None if it has not been run."""
    return trial.node_kind or (None if trial.is_missing else _OWN_MACHINE)


_WHAT_CAN_BE_COMPARED = (
    "Give run folders, sets of runs (a,b,c or a folder of runs), a sweep folder, or settings of a "
    "sweep such as runs/latest:workers=2."
)


@dataclass(frozen=True)
class MeasuredSide:
    """One run of a side: its record if it exists, its throughput, and its round in a sweep."""

    samples_per_s: float
    basis: str
    run: Run | None = None
    round: int | None = None
    metrics: TrialMetrics = field(default_factory=TrialMetrics)

    @property
    def figures(self) -> Summary | TrialMetrics:
        """The summary of the run if its record exists, else the figures in the sweep's."""
        return (self.run.summary if self.run else {}) or self.metrics


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    `left_out` lists the runs that do not count, with the reason; `failed` of them are failures.
    """

    name: str
    runs: tuple[MeasuredSide, ...]
    left_out: tuple[str, ...] = ()
    failed: int = 0
    sweep: Sweep | None = None
    values: Setting | None = None

    @property
    def rates(self) -> list[float]:
        """Return the throughputs, one per run."""
        return [each.samples_per_s for each in self.runs]


def in_rounds(one: Side, other: Side) -> bool:
    """Return whether two sides are settings of the same sweep, which runs in rounds."""
    return bool(one.sweep and other.sweep and one.sweep.path == other.sweep.path)


def read_sides(arguments: Sequence[str]) -> list[Side]:
    """Read what the arguments name, in their order; a sweep gives a side for each setting."""
    sides = [side for argument in arguments for side in _sides_of(argument)]
    if len(sides) < 2:
        found = sides[0].name if sides else "none"
        raise RequestError(f"wanted two or more sides, found {found}. {_WHAT_CAN_BE_COMPARED}")
    if len(arguments) == 1:  # a trial of a sweep, whose own name says nothing
        return [replace(side, name=name_of(side.values or {})) for side in sides]
    return sides


def _sides_of(argument: str) -> list[Side]:
    path = Path(argument)
    if argument and _is_there(path):  # empty, from an unset shell variable: not a folder
        return _sides_in(path, argument)
    # The folder and the setting may both contain a colon: arg:--lr=0.1.
    for end in (place for place, letter in enumerate(argument) if letter == ":"):
        folder = Path(argument[:end])
        if _is_there(folder) and is_sweep(folder):
            sweep = _sweep_in(folder)
            return [_side_of_setting(argument, sweep, find_setting(sweep, argument[end + 1 :]))]
    parts = [part for part in argument.split(",") if part]
    if len(parts) > 1:
        name = f"{Path(parts[0]).name} and {len(parts) - 1} more"
        return [_side_of_runs(name, [load_run(part) for part in parts])]
    raise RequestError(f"found nothing at {argument!r}. {_WHAT_CAN_BE_COMPARED}")


def _is_there(path: Path) -> bool:
    """Return whether a path exists; a long list of runs is not even a valid file name."""
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
    runs = [load_run(each) for each in within if not each.is_symlink()]  # `latest` is a link
    if not runs:
        raise RequestError(
            f"{argument} is neither a run nor a sweep folder, and has no run folders in it. "
            f"{_WHAT_CAN_BE_COMPARED}"
        )
    return [_side_of_runs(argument, runs)]


def _sweep_in(folder: Path) -> Sweep:
    """Open a sweep whose trials differ in their settings alone; refuse any other."""
    sweep = load_sweep(folder)
    if sweep.info.get("kind") == "workers":
        raise RequestError(
            f"{folder} was made by `stepscope workers`: its trials have different lengths and "
            "cannot be compared. Use `stepscope sweep --over workers=0,1,2`."
        )
    return by_node_kind(sweep)


def _side_of_runs(name: str, runs: Sequence[Run]) -> Side:
    paths = [run.path for run in runs]
    for path in paths:
        if paths.count(path) > 1:
            raise RequestError(
                f"{path.name} is named more than once in {name}; name each run once."
            )
    return _side(name, [(run.path.name, _measured_run(run)) for run in runs])


def _side_of_setting(name: str, sweep: Sweep, values: Setting) -> Side:
    trials = [trial for trial in sweep.trials if trial.values == values]
    rounds = [
        (f"round {trial.repeat}", _measured_trial(sweep, trial))
        for trial in sorted(trials, key=lambda trial: trial.repeat)
    ]
    return replace(_side(name, rounds), sweep=sweep, values=values)


class _LeftOut(NamedTuple):
    """Why a run does not count."""

    why: str
    failed: bool = False


def _side(name: str, measured: Sequence[tuple[str, MeasuredSide | _LeftOut]]) -> Side:
    counted = tuple(each for _, each in measured if isinstance(each, MeasuredSide))
    left_out = [(run, each) for run, each in measured if isinstance(each, _LeftOut)]
    reasons = (f"{run} is excluded: {each.why}" for run, each in left_out)
    return Side(name, counted, tuple(reasons), sum(each.failed for _, each in left_out))


def _measured_run(run: Run) -> MeasuredSide | _LeftOut:
    if run.status != schema.COMPLETED:
        return _ended(run.status, run.info.get("reason"))
    rate, basis = throughput_of(run)
    return _LeftOut(f"no throughput: {basis}") if rate is None else MeasuredSide(rate, basis, run)


def _measured_trial(sweep: Sweep, trial: Trial) -> MeasuredSide | _LeftOut:
    if trial.status != schema.COMPLETED:
        return _ended(trial.status, trial.reason)
    folder = sweep.folder_of(trial)
    run = load_run(folder) if (folder / schema.RUN).exists() else None
    rate, basis = rate_of_trial(trial.metrics)
    if rate is None:
        rate, basis = throughput_of(run) if run else Throughput(None, "its run folder is missing")
    if rate is None:
        return _LeftOut(f"no throughput: {basis}")
    return MeasuredSide(rate, basis, run, trial.repeat, trial.metrics)


_NO_FAILURE = (schema.PENDING, schema.RUNNING, schema.INTERRUPTED)


def _ended(status: str, reason: str | None) -> _LeftOut:
    ended = "still running" if status == schema.RUNNING else status.replace("_", " ")
    why = f"{ended} ({reason})" if reason else ended
    return _LeftOut(why, failed=status not in _NO_FAILURE)


# --- Groups of runs with the same settings and machine


_MAY_DIFFER = frozenset({"seed", "out"})
_OF_THE_MACHINE = ("hostname", "cpu", "device", "torch")


@dataclass(frozen=True)
class Group:
    """Runs that differ by chance alone. `values` are the settings that distinguish the group."""

    name: str
    runs: tuple[Run, ...]
    values: RecordedSpec

    def interval(self, figures: Iterable[float | None]) -> Interval | None:
        """Return median and interval of a figure over the runs; None if no run has it."""
        known = [figure for figure in figures if figure is not None]
        return interval_of(known) if known else None

    def throughput(self) -> Interval | None:
        """Return the samples per second of the runs."""
        return self.interval(throughput_of(run).samples_per_s for run in self.runs)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs of the same settings and name, in the order in which they come."""
    settings = [_settings_of(run) for run in runs]
    keys = dict.fromkeys(key for each in settings for key in each)
    differing = [k for k in keys if any(each.get(k) != settings[0].get(k) for each in settings)]
    found: dict[str, tuple[RecordedSpec, list[Run]]] = {}
    for run, each in zip(runs, settings, strict=True):
        values = {key: each.get(key) for key in differing}
        found.setdefault(name_of(values), (values, []))[1].append(run)
    given = [str(members[0].spec.get("name") or "") for _, members in found.values()]
    by_name = all(given) and len({*given}) == len(given)
    return [
        Group(name if by_name else _name(values, members[0]), tuple(members), values)
        for name, (values, members) in zip(given, found.values(), strict=True)
    ]


def side_of_group(group: Group) -> Side:
    """Return a group of runs as one side of a comparison."""
    return _side_of_runs(group.name, group.runs)


def groups_of(sweep: Sweep) -> list[Group]:
    """Group the finished trials of a sweep by setting, where their folders still exist."""
    found = []
    sweep = by_node_kind(sweep)
    for values in settings_of(sweep):
        folders = [
            sweep.folder_of(trial)
            for trial in sweep.trials
            if trial.values == values and trial.status == schema.COMPLETED
        ]
        runs = tuple(load_run(folder) for folder in folders if (folder / schema.RUN).exists())
        if runs:
            found.append(Group(name_of(values), runs, values))
    return found


def _settings_of(run: Run) -> RecordedSpec:
    machine = run.info.get("environment") or {}
    on = {name: machine.get(name) for name in _OF_THE_MACHINE}
    return {**on, **{key: value for key, value in run.spec.items() if key not in _MAY_DIFFER}}


def _name(values: RecordedSpec, run: Run) -> str:
    if list(values) in ([], ["name"]):
        return str(run.info.get("name") or run.path.name)
    return name_of(values)
