"""A discharging battery: the whole machine, screen included, but rarely updated."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from stepscope.errors import MachineError
from stepscope.hardware.energy.sensor import Sensor, read_number, word_in
from stepscope.hardware.procfs import is_there, matching
from stepscope.records.types import EVERYTHING

_MICRO = 1e-6


def find(root: Path) -> list[Sensor]:
    """List the batteries of the machine, without those of a mouse or a pen."""
    batteries = [
        supply
        for supply in matching(root / "sys/class/power_supply", "*")
        if word_in(supply / "type") == "Battery" and word_in(supply / "scope") != "Device"
    ]
    return [
        Sensor(
            f"battery {supply.name}",
            "battery" if number == 0 else f"battery {number + 1}",
            "power",
            partial(_power_w, supply),
            frozenset({EVERYTHING}),
        )
        for number, supply in enumerate(batteries)
    ]


def _power_w(supply: Path) -> float:
    status = word_in(supply / "status")
    if status != "Discharging":
        raise MachineError(
            f"{supply} is {(status or 'of unknown status').lower()}: a battery measures the power "
            "of the machine only while it discharges"
        )
    if is_there(supply / "power_now"):
        return abs(read_number(supply / "power_now", _MICRO))
    current_a = abs(read_number(supply / "current_now", _MICRO))
    return current_a * read_number(supply / "voltage_now", _MICRO)
