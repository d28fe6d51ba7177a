"""Which trials ran on machines that are alike? Only those of one kind of node are compared."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_uppercase
from typing import Any

from stepscope.records.sweep import Sweep, Trial

NODE = "node"
_NOT_YET = "none yet"
_OWN_MACHINE = "the machine that the sweep was begun on"


def kinds_of(sweep: Sweep) -> dict[str, str]:
    """Give every kind of node a letter, in the order in which they first made a trial.

    Empty where nothing is to be told apart: trials of one kind, or nodes that were to be mixed.
    """
    found = (_kind_of(trial) for trial in sweep.trials)
    kinds = dict.fromkeys(kind for kind in found if kind is not None)
    if len(kinds) < 2 or (sweep.info.get("on") or {}).get("mix_nodes"):
        return {}
    return {_letters(place): kind for place, kind in enumerate(kinds)}


def by_node_kind(sweep: Sweep) -> Sweep:
    """Tell trials on different kinds of node apart as by one more setting, `node`."""
    kinds = kinds_of(sweep)
    if not kinds:
        return sweep
    letters: dict[str | None, str] = {kind: letter for letter, kind in kinds.items()}
    letters[None] = _NOT_YET
    trials = [
        {**each, "values": {**each["values"], NODE: letters[_kind_of(trial)]}}
        for each, trial in zip(sweep.info["trials"], sweep.trials, strict=True)
    ]
    settings: list[dict[str, Any]] = [
        {**values, NODE: letter}
        for letter in [*kinds, _NOT_YET]
        for values in sweep.info.get("settings") or []
    ]
    return replace(sweep, info={**sweep.info, "trials": trials, "settings": settings})


def _kind_of(trial: Trial) -> str | None:
    """Return what made a trial; nobody did yet is None."""
    return trial.node_kind or (None if trial.is_missing else _OWN_MACHINE)


def _letters(place: int) -> str:
    """Count with letters: A to Z, then AA, AB and so on."""
    place, last = divmod(place, len(ascii_uppercase))
    return (_letters(place - 1) if place else "") + ascii_uppercase[last]
