"""The command that would tell: the same settings again, in rounds, as often as it takes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.analyze.differences import changed_settings
from stepscope.analyze.setting_names import as_text
from stepscope.analyze.sides import Side, in_rounds
from stepscope.records.sweep import Sweep
from stepscope.spec.as_flags import as_flags
from stepscope.spec.settings import RunSpec

_OF_A_SCRIPT = ("name", "out", "max_steps")
_HIDDEN = "***"  # a secret that was not recorded


def command_for(baseline: Side, others: Sequence[Side], rounds: int) -> str | None:
    """Write the sweep that runs these sides that often; None where no sweep would.

    That is so for runs that differ in more than one setting, or were made by different programs.
    """
    sides = [baseline, *others]
    if baseline.sweep is None:
        return _as_a_sweep(sides, rounds)
    if all(in_rounds(baseline, side) for side in others):
        return _again(baseline.sweep, sides, rounds)
    return None


def _as_a_sweep(sides: Sequence[Side], rounds: int) -> str | None:
    """Write a sweep over the one setting in which runs of ours differ."""
    axes = {key for side in sides[1:] for key in changed_settings(sides[0], side)}
    runs = [each.run for side in sides for each in side.runs if each.run]
    if len(axes) != 1 or any(run.info.get("kind") != "run" for run in runs):
        return None
    (axis,) = axes
    values = [run.spec.get(axis) for run in runs]
    if None in values:  # what was left to chance, or to torch, cannot be asked for
        return None
    fields = RunSpec.model_fields
    flags = {
        key: value
        for key, value in runs[0].spec.items()
        if key in fields and key not in ("name", "out", axis) and value != fields[key].default
    }
    return _written(flags, {axis: values}, rounds)


def _again(sweep: Sweep, sides: Sequence[Side], rounds: int) -> str | None:
    """Write a recorded sweep again; of one axis, only the values that are compared."""
    info, over = sweep.info, sweep.info.get("over")
    if not over:
        return None
    if len(over) == 1:
        over = {axis: [(side.values or {})[axis] for side in sides] for axis in over}
    script = info.get("script")
    if script is None:
        mode = {} if info.get("mode") == "train" else {"mode": info.get("mode")}
        asked = {key: value for key, value in (info.get("spec") or {}).items() if key not in over}
        return _written({**asked, **mode}, over, rounds)
    words = [str(word) for word in script.get("arguments") or ()]
    if any(_HIDDEN in word for word in words):
        return None
    target = ["-m", script["module"]] if script.get("module") else [str(script["script"])]
    flags = {key: script.get(key) for key in _OF_A_SCRIPT}
    return f"{_written(flags, over, rounds)} -- {shlex.join([*target, *words])}"


def _written(flags: Mapping[str, Any], over: Mapping[str, Sequence[Any]], rounds: int) -> str:
    named = {key: value for key, value in flags.items() if value is not None}
    axes = [
        f"--over {shlex.quote(axis + '=' + ','.join(dict.fromkeys(map(as_text, values))))}"
        for axis, values in over.items()
    ]
    words = ["stepscope sweep", as_flags(named), *axes, f"--repeats {rounds}"]
    return " ".join(word for word in words if word)
