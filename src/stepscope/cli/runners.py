"""Where trials are made: `--on here` or `--on ray`, from flags or from a sweep's record."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.errors import RequestError, nearest
from stepscope.experiments.runners import Runner
from stepscope.experiments.runners.here import HERE, Here
from stepscope.records import schema
from stepscope.records.sweep import load_sweep

_KNOWN = ("here", "ray")
_AUTO = "auto"


def read_place(on: str | None, address: str | None, mix_nodes: bool) -> dict[str, Any] | None:
    """Return where trials are to be made, as it is recorded; None is this machine.

    Raises:
        RequestError: there is no such place, or flags for another one.
    """
    if on is not None and on not in _KNOWN:
        raise RequestError(f"on: wanted here or ray, found {on!r}.{nearest(on, _KNOWN)}")
    if on == "ray":
        return {"runner": "ray", "address": _address(address), "mix_nodes": mix_nodes}
    for flag, given in (("address", address is not None), ("mix_nodes", mix_nodes)):
        if given:
            raise RequestError(f"{flag}: wants --on ray.")
    return None


def _address(given: str | None) -> str:
    """Return which cluster is meant: the one that is named, that Ray is told of, or any here."""
    named = None if given == _AUTO else given
    return named or os.environ.get("RAY_ADDRESS") or _AUTO


def place_to_go_on(
    folder: Path, on: str | None, address: str | None, mix_nodes: bool
) -> Mapping[str, Any] | None:
    """Return where a sweep goes on: where it was, unless somebody names another place.

    This machine is one among others then, where trials were made on a cluster before.
    """
    sweep = load_sweep(folder)
    if on is None and address is None and not mix_nodes:
        done = sweep.info.get("status") == schema.COMPLETED
        recorded: Mapping[str, Any] | None = None if done else sweep.info.get("on")
        return recorded
    begun_elsewhere = bool(sweep.info.get("on"))
    place = read_place(on or ("ray" if begun_elsewhere else None), address, mix_nodes)
    return {"runner": "here"} if place is None and begun_elsewhere else place


@contextmanager
def runner_at(place: Mapping[str, Any] | None) -> Iterator[Runner]:
    """Make ready whoever makes the trials at a place.

    Raises:
        RequestError: the record names a place that this version does not know.
        MachineError: nobody is there.
    """
    if place is None:
        yield HERE
    elif place.get("runner") == "here":
        yield Here(among_others=True)
    elif place.get("runner") == "ray":
        from stepscope.experiments.runners.on_ray import on_ray

        with on_ray(place["address"], mix_nodes=bool(place.get("mix_nodes"))) as runner:
            yield runner
    else:
        raise RequestError(f"the sweep's record has trials made on {place.get('runner')!r}.")
