"""The flags of a spec, generated from `settings.run_settings`, and helpers to read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
)

from cyclopts import Group, Parameter

from stepscope.cli.completion import completed_with
from stepscope.cli.script_arguments import split_script
from stepscope.data import dataset_registry
from stepscope.errors import RequestError
from stepscope.experiments.workload import ScriptWorkload, TrainingWorkload
from stepscope.models import registry
from stepscope.records.types import SettingValue
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import read_settings, with_changes
from stepscope.settings.run_settings import ALIASES, DEVICES, GROUPS, takes_number

_HAS_METAVAR = "metavar" in signature(Parameter).parameters  # not in cyclopts 4 of Python 3.10
_VALUES = {
    **dict.fromkeys(("model", "data", "name"), "NAME"),
    **dict.fromkeys(("weights", "data_dir", "out"), "DIR"),
    "source": "PLACE",
    "endpoint_url": "URL",
    "input": "C,H,W",
    "require": "KEY=VALUE",
    "device": "auto|cpu|cuda|cuda:N|mps",
    "memory_limit": "SIZE",
}
_COMPLETIONS = {"model": (*registry.ZOO,), "data": dataset_registry.NAMES, "device": DEVICES}
_FLAGS_OF = {new: [f"--{old.replace('_', '-')}"] for old, new in ALIASES.items()}


def _flag(name: str, group: Group, *, is_shown: bool) -> Any:
    field = RunSpec.model_fields[name]
    default = field.default
    shown = "" if default is None or isinstance(default, bool) else f" [default: {default}]"
    metavar: dict[str, Any] = {"metavar": _value_of(name)} if _HAS_METAVAR else {}
    about = Parameter(
        help=f"{field.description}{shown}",
        group=group,
        show=is_shown,
        alias=_FLAGS_OF.get(name),
        **metavar,
    )
    if field.annotation is bool:
        return Annotated[bool, about]
    values = _COMPLETIONS.get(name) or get_args(field.annotation)
    completed = completed_with(lambda _: map(str, values))
    if name in ("augment", "norm"):
        # `--no-augment` gives None, which these settings take as `none`.
        return Annotated[str | None, about, completed, Parameter(negative_none="no-")]
    # Numbers stay text here too: the spec reads them, so that a wrong one gets the same answer on
    # the command line as in a file, and 64.5 is not taken for 64.
    return Annotated[str, about, completed]


def _value_of(name: str) -> str:
    """Return what stands for the value in help: the choices, or the type."""
    annotation = RunSpec.model_fields[name].annotation
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    number = "X" if annotation is float else "N"
    return _VALUES.get(name) or (number if takes_number(name) else "TEXT")


if TYPE_CHECKING:
    SpecFlags: TypeAlias = dict[str, SettingValue]
    OtherSpecFlags: TypeAlias = dict[str, SettingValue]
else:

    def _flags(title: str, *, are_shown: bool) -> Any:
        flags = {}
        for place, (heading, names) in enumerate(GROUPS.items()):
            group = Group(heading, sort_key=place + 10)
            flags |= {name: _flag(name, group, is_shown=are_shown) for name in names}
        return TypedDict(title, flags, total=False)

    SpecFlags = _flags("SpecFlags", are_shown=True)
    OtherSpecFlags = _flags("OtherSpecFlags", are_shown=False)

Settings = Annotated[SpecFlags | None, Parameter(name="*")]
# Of a command that takes every setting of `run` and lists only its own flags.
SettingsToo = Annotated[OtherSpecFlags | None, Parameter(name="*")]


# --- Sample shape and classes


_OWN_INPUT, _OWN_CLASSES = (3, 32, 32), 10
_WHOLE = re.compile(r"\s*([1-9][0-9]{0,8})\s*", re.ASCII)


def layout_of(model: str, shape: str | None, classes: str | None) -> tuple[tuple[int, ...], int]:
    """Return the shape of a sample and the number of classes: those asked for, else the zoo's."""
    registry.check_name(model)
    entry = registry.ZOO.get(model)
    sample_shape: tuple[int, ...] = entry.input_shape if entry else _OWN_INPUT
    count = entry.classes if entry else _OWN_CLASSES
    if shape is not None:
        read = [_WHOLE.fullmatch(part) for part in shape.split(",")]
        sample_shape = tuple(int(part[1]) for part in read if part)
        if len(sample_shape) < len(read):
            raise RequestError(
                "--input: wanted the shape of one sample, whole numbers of 1 or more with commas "
                f"between them, like 3,32,32; found {shape!r}."
            )
    if classes is not None:
        whole = _WHOLE.fullmatch(classes)
        if whole is None:
            raise RequestError(f"--classes: wanted a whole number of 1 or more, found {classes!r}.")
        count = int(whole[1])
    return sample_shape, count


# --- The workload: a training of ours, or a script


Default = TypeVar("Default")
# Flags that also apply to a user script.
_FOR_SCRIPTS = ("out", "name", "max_steps")


def workload_of_words(
    words: Sequence[str], settings: SpecFlags | None, mode: Literal["train", "load"] = "train"
) -> TrainingWorkload | ScriptWorkload:
    """Return the workload of a command: a file of settings or, after `--`, a script."""
    ours, script = split_script(words)
    flags = settings or {}
    if script is None:
        return TrainingWorkload(named_settings(ours, flags), mode)
    ours += [f"--{name.replace('_', '-')}" for name in flags if name not in _FOR_SCRIPTS]
    if ours:
        raise RequestError(
            f"{', '.join(ours)}: a setting of `stepscope run`, but a script was given. Put the "
            "script's own flags after it; vary them with --over arg:--flag=a,b."
        )
    checked = with_changes({}, flags)
    out, name, max_steps = checked.out, checked.name, checked.max_steps
    return ScriptWorkload(replace(script, out=out, name=name, max_steps=max_steps))


def named_settings(words: Sequence[str], flags: Mapping[str, SettingValue]) -> SpecFlags:
    """Return the settings of a file and of flags, validated together."""
    if len(words) > 1:
        raise RequestError(
            f"wanted one file of settings at most, found {' '.join(words)}. "
            "Put your own script after --."
        )
    file = read_settings(Path(words[0])) if words else {}
    with_changes(file, flags, where=f"{words[0]}: " if words else "")
    return {**file, **flags}


def place_of(
    workload: TrainingWorkload | ScriptWorkload, command: str, what: str | None = None
) -> tuple[Path, str]:
    """Return the output folder and the name under which the trials of a command are recorded."""
    named = workload.spec({}) if isinstance(workload, TrainingWorkload) else workload.request
    return Path(named.out), named.name or f"{command}-{what or named.run_name}"


def count(name: str, text: str | None, default: Default) -> int | Default:
    """Parse an integer that is not a setting of a run."""
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()):
        raise RequestError(f"{name}: wanted a whole number, found {text!r}.")
    return int(text)
