"""Which runs repeat each other? Runs of the same settings on the same machine are one group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.analyze.node_kinds import by_node_kind
from stepscope.analyze.setting_names import name_of, settings_of
from stepscope.analyze.throughput import throughput_of
from stepscope.records import schema
from stepscope.records.reader import Run, load_run
from stepscope.records.sweep import Sweep
from stepscope.stats import Interval, interval_of

_MAY_DIFFER = frozenset({"seed", "out"})
_OF_THE_MACHINE = ("hostname", "cpu", "device", "torch")


@dataclass(frozen=True)
class Group:
    """Runs that differ by chance alone. `values` are the settings that set it apart."""

    name: str
    runs: tuple[Run, ...]
    values: dict[str, Any]

    def interval(self, figures: Iterable[float | None]) -> Interval | None:
        """Return median and interval of a figure of the runs; None where no run knows it."""
        known = [figure for figure in figures if figure is not None]
        return interval_of(known) if known else None

    def throughput(self) -> Interval | None:
        """Return the samples a second of the runs."""
        return self.interval(throughput_of(run).samples_per_s for run in self.runs)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs together that were asked for alike, in the order in which they come.

    Names set runs apart: whoever gave two runs two names wants to see both, by those names.
    """
    asked = [_asked(run) for run in runs]
    keys = dict.fromkeys(key for each in asked for key in each)
    telling = [key for key in keys if any(each.get(key) != asked[0].get(key) for each in asked)]
    found: dict[str, list[Run]] = {}
    values = {}
    for run, each in zip(runs, asked, strict=True):
        apart = {key: each.get(key) for key in telling}
        found.setdefault(name_of(apart), []).append(run)
        values[name_of(apart)] = apart
    named = [str(members[0].spec.get("name") or "") for members in found.values()]
    by_name = all(named) and len({*named}) == len(named)
    return [
        Group(given if by_name else _name(values[key], members[0]), tuple(members), values[key])
        for given, (key, members) in zip(named, found.items(), strict=True)
    ]


def groups_of(sweep: Sweep) -> list[Group]:
    """Put the finished trials of each setting of a sweep together, where their folders are left."""
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


def _asked(run: Run) -> dict[str, Any]:
    machine = run.info.get("environment") or {}
    on = {name: machine.get(name) for name in _OF_THE_MACHINE}
    return {**on, **{key: value for key, value in run.spec.items() if key not in _MAY_DIFFER}}


def _name(apart: dict[str, Any], run: Run) -> str:
    if not apart:
        return str(run.info.get("name") or run.path.name)
    if list(apart) == ["name"]:
        return str(apart["name"] or run.path.name)
    return name_of(apart)
