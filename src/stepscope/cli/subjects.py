"""What is to be tried, from the words and flags of `sweep` and `workers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.cli.script_arguments import ScriptCommand
from stepscope.errors import RequestError
from stepscope.experiments.subjects import OwnScript, OwnTraining
from stepscope.experiments.traced import TraceRequest
from stepscope.spec.load import read_settings, with_changes

# Flags of ours that mean something for somebody's own script.
_FOR_SCRIPTS = ("out", "name", "max_steps")


def named_settings(words: Sequence[str], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that somebody named, in a file and in flags, checked together.

    Raises:
        RequestError: they are wrong.
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
    """Return how somebody's script is to be run.

    Raises:
        RequestError: there are settings of a training of ours beside it.
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


def place_of(subject: OwnTraining | OwnScript, usual_name: str) -> tuple[Path, str]:
    """Return where somebody wants what is tried recorded, and under which name."""
    named = subject.spec({}) if isinstance(subject, OwnTraining) else subject.request
    return Path(named.out), named.name or usual_name


def count(name: str, text: str) -> int:
    """Read a whole number that is not a setting of a run.

    Raises:
        RequestError: it is none.
    """
    if not (text.isascii() and text.isdecimal()):
        raise RequestError(f"{name}: wanted a whole number, found {text!r}.")
    return int(text)
