"""The energy sensors of this machine, one module for each family.

    gpu_nvml       NVML: a GPU's energy counter, or its power
    board_rails    meters on a board: a Jetson's INA3221, and hwmon
    battery        a battery while it is discharging
    cpu_rapl       the processor's counters: package, cores, memory, platform

`find_sensors` queries them all. A new family is a module with `find(root)` and a line in
`_FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import MachineError
from stepscope.hardware.energy import battery, board_rails, cpu_rapl, gpu_nvml
from stepscope.hardware.energy.sensor import Kind, Sensor

__all__ = ["Kind", "Sensor", "Sensors", "find_sensors"]

# Of several that cover the whole machine, the first is preferred.
_FAMILIES: dict[str, Callable[[Path], list[Sensor]]] = {
    "NVML": gpu_nvml.find,
    "board rails": board_rails.find,
    "battery": battery.find,
    "RAPL": cpu_rapl.find,
}


@dataclass(frozen=True)
class Sensors:
    """The working sensors in order of preference, and the reasons for the others."""

    working: tuple[Sensor, ...]
    refused: dict[str, str]

    @property
    def why_none(self) -> str:
        """The reason why there is no sensor."""
        if self.refused:
            return "no energy sensor can be read: " + "; ".join(self.refused.values())
        tried = ", ".join(_FAMILIES)
        return f"no energy sensor (tried {tried})"


def find_sensors(root: Path) -> Sensors:
    """Find the sensors of a machine that can be read, by reading each once."""
    working, refused = [], {}
    for family, find in _FAMILIES.items():
        try:
            found = find(root)
        except MachineError as error:
            refused[family] = str(error)
            continue
        for sensor in found:
            try:
                sensor.read()
            except MachineError as error:
                refused[sensor.name] = str(error)
            else:
                working.append(sensor)
    return Sensors(tuple(working), refused)
