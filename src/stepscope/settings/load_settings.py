"""From a file and flags to a validated spec, with errors that name the setting."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stepscope.errors import RequestError, nearest
from stepscope.files import parse_json, parse_toml, read_bounded_text
from stepscope.settings.run_settings import ALIASES, RunSpec, field_names, takes_number


def resolve_request(file: Path | None, flags: Mapping[str, Any]) -> RunSpec:
    """Combine a file (TOML, or the `run.json` of an earlier run) with flags; a flag wins."""
    asked = read_settings(file) if file is not None else {}
    return with_changes(asked, flags, where=f"{file}: " if file is not None else "")


def with_changes(asked: Mapping[str, Any], changes: Mapping[str, Any], where: str = "") -> RunSpec:
    """Return validated settings with some of them changed."""
    kept = dict(asked)
    if "optimizer" in changes and "nesterov" not in changes:
        kept.pop("nesterov", None)  # a learning rate belongs to its optimiser
    return validate({**kept, **changes}, where)


def read_settings(file: Path) -> Mapping[str, Any]:
    """Return the unvalidated settings of a TOML file or of a run's `run.json`."""
    try:
        text = read_bounded_text(file)
    except FileNotFoundError:
        raise RequestError(
            f"no such file: {file}. Give a TOML file of settings, or the run.json of a run."
        ) from None
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {file}: {error}. Give a TOML file of settings.") from error
    if file.suffix != ".json":
        try:
            settings = parse_toml(text)
        except ValueError as error:
            raise RequestError(
                f"{file} is not valid TOML: {error}. Settings are written like: batch_size = 64"
            ) from error
        return {ALIASES.get(name, name): value for name, value in settings.items()}
    try:
        spec = parse_json(text)["spec"]
    except (ValueError, KeyError, TypeError):
        spec = None
    if not isinstance(spec, dict):
        raise RequestError(
            f"{file} has no `spec` that could be repeated: wanted the run.json of a run folder."
        )
    return spec


def validate(settings: Mapping[str, Any], where: str = "") -> RunSpec:
    """Validate all settings; raise one error that lists everything that is wrong."""
    known = field_names()
    unknown = [key for key in settings if key not in known]
    complaints = [f"unknown setting {key!r}.{nearest(key, known)}" for key in unknown]
    complaints += [
        f"{key}: wanted a number, found {str(value).lower()}"
        for key, value in settings.items()
        if isinstance(value, bool) and key in known and takes_number(key)
    ]
    try:
        spec = RunSpec.model_validate({key: settings[key] for key in settings if key in known})
    except ValidationError as error:
        complaints += map(_complaint, error.errors())
    if complaints:
        raise RequestError(where + "; ".join(complaints))
    return spec


def _complaint(error: Any) -> str:
    """Return an error of pydantic as: the setting, the value found, the value expected."""
    message = str(error["msg"])
    for prefix in ("Value error, ", "Input should be ", "String should have "):
        message = message.removeprefix(prefix)
    if not error["loc"]:
        return message
    field = str(error["loc"][0])
    if error["type"] == "value_error":
        return f"{field}: {message}"
    return f"{field}: wanted {message}, found {error['input']!r}"


# --- Settings as flags


def as_flags(settings: Mapping[str, Any]) -> str:
    """Return settings as flags, quoted for a shell: `--batch-size 64 --checkpoint-activations`."""
    return " ".join(_flag(name.replace("_", "-"), value) for name, value in settings.items())


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    if name == "memory-limit" and isinstance(value, int):
        value = f"{value}B"  # a size is given with its unit
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    return f"--{name} {shlex.quote(str(value))}"
