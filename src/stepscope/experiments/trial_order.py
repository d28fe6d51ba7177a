"""Which trials: a grid of settings, each once in a round, in random and balanced orders.

What slows the machine for a while slows all settings of a round alike, and none is always the
first, or always after the same one. The order and its seed are recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from stepscope.errors import RequestError, nearest
from stepscope.experiments.workload import ARGUMENT, LOADER_SETTINGS
from stepscope.files import parse_toml
from stepscope.records.sweep_folder import Trial
from stepscope.records.types import SettingValue
from stepscope.settings.run_settings import ALIASES, field_names
from stepscope.stats.decide import design

DEFAULT_REPEATS = 6
_NO_AXES = ("name", "out")  # where a run is recorded, not what it does
_MOST_TRIALS = 100_000


def read_axes(over: Sequence[str], *, of_script: bool = False) -> dict[str, list[SettingValue]]:
    """Read `key=v1,v2,…`, once for each axis; refuse unknown, repeated and empty ones."""
    if not over:
        raise RequestError("over: wanted at least one axis, such as workers=0,1,2; found none.")
    axes: dict[str, list[SettingValue]] = {}
    for each in over:
        name, values = _read_axis(each, of_script)
        if name in axes:
            raise RequestError(f"over: {name} is given twice. List all its values: {name}=a,b,c")
        axes[name] = values
    return axes


def _read_axis(text: str, of_script: bool) -> tuple[str, list[SettingValue]]:
    argument = text.startswith(ARGUMENT)
    name, equals, listed = text.removeprefix(ARGUMENT).partition("=")
    if not equals:
        raise RequestError(f"over: wanted KEY=V1,V2,…, found {text!r}.")
    name = ARGUMENT + name if argument else name.strip().replace("-", "_")
    name = ALIASES.get(name, name)
    _check_axis(name, of_script)
    words = [word.strip() for word in listed.split(",")]
    if "" in words:
        raise RequestError(f"over: wanted a value between all commas, found {name}={listed}.")
    # A script reads its own flags, so they stay as they were written.
    values = [word if argument else _value(word) for word in words]
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise RequestError(f"over: {name} has {twice[0]} twice. --repeats N repeats every trial.")
    return name, values


def _check_axis(name: str, of_script: bool) -> None:
    if name.startswith(ARGUMENT):
        if not of_script:
            raise RequestError(
                f"over: {name} is for a script's own flags. Give the script after --."
            )
        if not name.removeprefix(ARGUMENT):
            raise RequestError(f"over: wanted a flag, like {ARGUMENT}--lr, found none.")
        return
    known = LOADER_SETTINGS if of_script else [n for n in field_names() if n not in _NO_AXES]
    if name not in known:
        also = f" Write its own flags as {ARGUMENT}--lr=0.1,0.01." if of_script else ""
        raise RequestError(f"over: there is no axis {name!r}.{nearest(name, known)}{also}")


def _value(word: str) -> SettingValue:
    """Read a number, true or false; everything else is a word."""
    try:
        value = parse_toml(f"value = {word}")["value"]
    except ValueError:
        return word
    return value if isinstance(value, bool | int | float) else word


def grid(axes: Mapping[str, Sequence[SettingValue]]) -> list[dict[str, SettingValue]]:
    """Return every combination of the axes' values."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def plan_trials(
    settings: Sequence[Mapping[str, SettingValue]], repeats: int, seed: int
) -> list[Trial]:
    """Return all trials in the order in which they are run; refuse none and too many."""
    if repeats < 1:
        raise RequestError(f"repeats: wanted 1 or more, found {repeats}.")
    if not 0 < len(settings) * repeats <= _MOST_TRIALS:
        raise RequestError(
            f"wanted 1 to {_MOST_TRIALS:,} trials, found {len(settings) * repeats:,}."
        )
    orders = design(range(len(settings)), repeats, seed)
    planned = [(place, repeat) for repeat, order in enumerate(orders, 1) for place in order]
    return [
        Trial(index, dict(settings[place]), repeat) for index, (place, repeat) in enumerate(planned)
    ]
