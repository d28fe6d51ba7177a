"""An energy sensor: its name, its domain, and how it is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepscope.errors import MachineError
from stepscope.hardware.procfs import is_there, read_integer, read_name
from stepscope.records.types import EnergySensor

Kind = Literal["counter", "power"]


@dataclass(frozen=True)
class Sensor:
    """A source of energy or power readings.

    Two sensors of the same domain measure the same thing: the second replaces the first when it
    fails. `read` returns joules from a counter and watts from a power sensor, or raises
    MachineError. `contains` names the domains that are part of this one; `range_j` is where a
    counter restarts at 0. A rail with unknown consumers is not `addable` to others.
    """

    name: str
    domain: str
    kind: Kind
    read: Callable[[], float]
    contains: frozenset[str] = frozenset()
    range_j: float | None = None
    addable: bool = True

    def describe(self) -> EnergySensor:
        """Return its description for the record, as plain values."""
        return {
            "name": self.name,
            "domain": self.domain,
            "kind": self.kind,
            "contains": sorted(self.contains),
            "range_j": self.range_j,
            "addable": self.addable,
        }


def read_number(file: Path, scale: float = 1.0) -> float:
    """Read a file that holds one whole number, times `scale`."""
    found = read_integer(file)
    if found.value is not None:
        return found.value * scale
    if is_there(file) and not os.access(file, os.R_OK):
        raise MachineError(f"only root can read {file}. Run as root, or chmod a+r it")
    raise MachineError(found.reason or f"{file} is empty")


def word_in(file: Path) -> str | None:
    """Read a name from a file, made safe for a CSV field; None if there is none."""
    text = read_name(file).value or ""
    return " ".join(text.replace(",", " ").split()) or None
