"""The conditions of a measurement: the machine state that comparable runs must share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from stepscope.hardware.cpu_clock import OFF, ON, clocks, governor, memory_clock, turbo
from stepscope.hardware.host import swap_areas
from stepscope.hardware.jetson import board, power_mode
from stepscope.hardware.procfs import Reading, read_name
from stepscope.hardware.thermal import fan, temperature_c
from stepscope.records.types import MachineConditions

CLOCK_SOURCES = "sys/devices/system/clocksource/clocksource0"


def clock_source(root: Path) -> Reading[str]:
    """Return the name of the kernel's clock source."""
    return read_name(root / CLOCK_SOURCES / "current_clocksource")


def swap(root: Path) -> Reading[str]:
    """Return whether memory can be swapped out: `on` or `off`."""
    return swap_areas(root).map(lambda areas: ON if areas else OFF)


CONDITIONS: Mapping[str, Callable[[Path], Reading[str]]] = {
    "board": board,
    "power_mode": power_mode,
    "governor": governor,
    "clocks": clocks,
    "memory_clock": memory_clock,
    "fan": fan,
    "turbo": turbo,
    "swap": swap,
    "clock_source": clock_source,
}


def read_conditions(root: Path) -> dict[str, Reading[str]]:
    """Read every condition, by name."""
    return {name: read(root) for name, read in CONDITIONS.items()}


def describe_conditions(root: Path) -> MachineConditions:
    """Return the conditions as plain values for a record, with reasons in `absent`."""
    read = read_conditions(root)
    warmth = temperature_c(root)
    reasons = {name: reading.reason for name, reading in read.items()}
    reasons["temperature_c"] = warmth.reason
    described = {
        **{name: reading.value for name, reading in read.items()},
        "temperature_c": {"start": warmth.value, "end": None},
        "absent": {name: reason for name, reason in reasons.items() if reason is not None},
    }
    return cast("MachineConditions", described)


def describe_end(before: MachineConditions, root: Path) -> MachineConditions:
    """Return a description completed with the final temperature and changed conditions."""
    after = describe_conditions(root)
    return {
        **before,
        "temperature_c": {
            "start": before["temperature_c"]["start"],
            "end": after["temperature_c"]["start"],
        },
        "changed": {
            name: {"start": before.get(name), "end": after.get(name)}
            for name in CONDITIONS
            if before.get(name) != after.get(name)
        },
    }
