"""The settings of a sweep, and how a person names one of them: `workers=2,batch_size=16`."""

from __future__ import annotations

from typing import Any

from stepscope.errors import RequestError, nearest
from stepscope.records.sweep import Sweep


def settings_of(sweep: Sweep) -> list[dict[str, Any]]:
    """List the settings of a sweep in the order in which they were asked for."""
    asked = sweep.info.get("settings") or []
    found: list[dict[str, Any]] = []
    for trial in sweep.trials:
        if trial.values not in found:
            found.append(trial.values)
    return sorted(found, key=lambda each: asked.index(each) if each in asked else len(asked))


def find_setting(sweep: Sweep, text: str) -> dict[str, Any]:
    """Find the one setting that `workers=2,batch_size=16` names."""
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
    found = "none" if not matching else f"{len(matching)} of them"
    listed = "; ".join(map(name_of, matching or settings))
    raise RequestError(f"wanted one setting of {sweep.path}, {text!r} names {found}: {listed}.")


def name_of(values: dict[str, Any]) -> str:
    """Name a setting by its values: `workers=2,batch_size=16`."""
    return ",".join(f"{axis}={as_text(value)}" for axis, value in values.items())


def as_text(value: Any) -> str:
    """Write a value as a person would type it on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
