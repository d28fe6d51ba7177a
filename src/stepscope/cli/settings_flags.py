"""The flags of a spec, generated from `settings.run_settings`, and helpers to read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypedDict

from cyclopts import Parameter

from stepscope.cli.script_arguments import ScriptCommand
from stepscope.errors import RequestError
from stepscope.experiments.workload import ScriptWorkload, TrainingWorkload
from stepscope.models import registry
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import read_settings, with_changes
from stepscope.supervisor.script_child import TraceRequest

_METAVARS: dict[Any, str] = {int: "N", int | None: "N", float: "X"}


def _flag(name: str) -> Any:
    field = RunSpec.model_fields[name]
    default = field.default
    shown = "" if default is None or isinstance(default, bool) else f" [default: {default}]"
    about = Parameter(help=f"{field.description}{shown}", **_metavar(field.annotation))
    if field.annotation is bool:
        return Annotated[bool, about]
    if name in ("augment", "norm"):
        # `--no-augment` gives None, which these settings take as `none`.
        return Annotated[str | None, about, Parameter(negative_none="no-")]
    # Numbers stay text here too: the spec reads them, so that a wrong one gets the same answer on
    # the command line as in a file, and 64.5 is not taken for 64.
    return Annotated[str, about]


def _metavar(annotation: Any) -> dict[str, Any]:
    """Return the value placeholder of a flag; cyclopts 4, the last for Python 3.10, has none."""
    if "metavar" not in signature(Parameter).parameters:
        return {}
    return {"metavar": _METAVARS.get(annotation, "WORD")}


SpecFlags = TypedDict(  # type: ignore[misc]
    "SpecFlags", {name: _flag(name) for name in RunSpec.model_fields}, total=False
)


# --- Sample shape and classes


_OWN_INPUT, _OWN_CLASSES = (3, 32, 32), 10
_WHOLE = re.compile(r"\s*([1-9][0-9]{0,8})\s*", re.ASCII)


def layout_of(model: str, shape: str | None, classes: str | None) -> tuple[tuple[int, ...], int]:
    """Return the shape of a sample and the number of classes: those asked for, else the zoo's.

    Raises:
        RequestError: the model is unknown, or a flag is no shape or no number.
    """
    registry.check_name(model)
    entry = registry.ZOO.get(model)
    sample_shape: tuple[int, ...] = entry.input_shape if entry else _OWN_INPUT
    count = entry.classes if entry else _OWN_CLASSES
    return (
        sample_shape if shape is None else _read_shape(shape),
        count if classes is None else _read_classes(classes),
    )


def _read_shape(text: str) -> tuple[int, ...]:
    read = [_WHOLE.fullmatch(part) for part in text.split(",")]
    numbers = tuple(int(part[1]) for part in read if part)
    if len(numbers) < len(read):
        raise RequestError(
            "--input: wanted the shape of one sample without the batch, whole numbers of 1 or more "
            f"with commas between them, like 3,32,32; found {text!r}."
        )
    return numbers


def _read_classes(text: str) -> int:
    read = _WHOLE.fullmatch(text)
    if read is None:
        raise RequestError(f"--classes: wanted a whole number of 1 or more, found {text!r}.")
    return int(read[1])


# --- Requests of `sweep` and `workers`


# Flags that also apply to a user script.
_FOR_SCRIPTS = ("out", "name", "max_steps")


def named_settings(words: Sequence[str], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file and of flags, validated together.

    Raises:
        RequestError: a setting is invalid.
    """
    if len(words) > 1:
        raise RequestError(
            f"wanted one file of settings at most, found {' '.join(words)}. "
            "A script of your own comes after --."
        )
    file = read_settings(Path(words[0])) if words else {}
    named = {**file, **flags}
    with_changes(file, flags, where=f"{words[0]}: " if words else "")
    return named


def script_request(
    words: Sequence[str], script: ScriptCommand, flags: Mapping[str, Any]
) -> TraceRequest:
    """Return the request to run a user script.

    Raises:
        RequestError: settings of a built-in training are given too.
    """
    ours = [*words, *(f"--{name.replace('_', '-')}" for name in flags if name not in _FOR_SCRIPTS)]
    if ours:
        raise RequestError(
            f"{', '.join(ours)}: of our own training, and a script was given. Its own flags come "
            "after it; vary them with --over arg:--flag=a,b."
        )
    checked = with_changes({}, flags)
    return TraceRequest(
        script.script,
        script.module,
        script.arguments,
        out=checked.out,
        name=checked.name,
        max_steps=checked.max_steps,
    )


def place_of(workload: TrainingWorkload | ScriptWorkload, usual_name: str) -> tuple[Path, str]:
    """Return the output folder and the name under which trials are recorded."""
    named = workload.spec({}) if isinstance(workload, TrainingWorkload) else workload.request
    return Path(named.out), named.name or usual_name


def count(name: str, text: str) -> int:
    """Parse an integer that is not a setting of a run.

    Raises:
        RequestError: it is not an integer.
    """
    if not (text.isascii() and text.isdecimal()):
        raise RequestError(f"{name}: wanted a whole number, found {text!r}.")
    return int(text)
