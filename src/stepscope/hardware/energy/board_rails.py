"""Power meters on a board: the INA3221 of a Jetson, and others in hwmon.

A Jetson has one meter for its input and some for rails behind it, or, on an AGX, only rails, which
do not contain one another. Kernels up to 4.9 list them under iio with a power, later ones under
hwmon with a voltage and a current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from stepscope.errors import MachineError
from stepscope.hardware.energy.sensor import Sensor, read_number, word_in
from stepscope.hardware.procfs import is_there, matching
from stepscope.records.types import EVERYTHING

_MILLI, _MICRO = 1e-3, 1e-6

# Inputs of a module or a board: they feed all of it.
_INPUTS = frozenset({"VDD_IN", "POM_5V_IN", "VDD_5V_IN", "VIN"})
# AGX Orin: the memory's rail is assumed to be behind the system's and is not added.
_BEHIND = {"VIN_SYS_5V0": frozenset({"VDDQ_VDD2_1V8AO"})}
_JETSON = "ina3221"
# Other chips with known coverage.
_WHOLE_MACHINE = frozenset({"power_meter", "acpi_power_meter", "macsmc_hwmon"})
_GPUS = frozenset({"amdgpu", "xe"})
# "On APUs this includes the CPU": drivers/gpu/drm/amd/pm/amdgpu_pm.c, of power1_average and _input.
# There too: only AMD's on-chip GPUs report the voltage of a north bridge.
_ONLY_OF_APUS = "vddnb"
_OF_PROCESSOR = frozenset(f"package-0{part}" for part in ("", " core", " uncore"))


def find(root: Path) -> list[Sensor]:
    """List the rails; a rail with two interfaces is listed twice, as one domain."""
    drivers = root / "sys/bus/i2c/drivers"
    chips = [
        *matching(root / "sys/class/hwmon", "hwmon*"),
        *matching(drivers, f"{_JETSON}/*/hwmon/hwmon*"),
    ]
    found = [sensor for chip in chips for sensor in _of_chip(chip)]
    for device in matching(drivers, f"{_JETSON}x/*/iio:device*"):
        found += _of_iio(device)
    return found


def _of_iio(device: Path) -> Iterator[Sensor]:
    for label_file in matching(device, "rail_name_*"):
        label = word_in(label_file)
        file = device / f"in_power{label_file.name.rpartition('_')[2]}_input"
        if label is not None and is_there(file):
            yield _rail(label, partial(_power_w, file, _MILLI))


def _of_chip(chip: Path) -> Iterator[Sensor]:
    name = word_in(chip / "name") or chip.name
    if name.startswith(_JETSON):
        yield from _of_ina3221(chip)
        return
    for file in sorted([*matching(chip, "power*_input"), *matching(chip, "power*_average")]):
        channel = file.name.partition("_")[0]
        label = word_in(chip / f"{channel}_label")
        read = partial(_power_w, file, _MICRO)
        title = f"{name} {chip.name} {label or channel}"
        if name in _WHOLE_MACHINE:
            yield Sensor(title, "machine", "power", read, frozenset({EVERYTHING}))
        elif name in _GPUS:
            if word_in(chip / "in1_label") == _ONLY_OF_APUS:
                yield Sensor(title, f"apu {chip.name}", "power", read, _OF_PROCESSOR)
            else:
                yield Sensor(title, f"gpu {chip.name}", "power", read)
        else:
            yield Sensor(title, title, "power", read, addable=False)


def _of_ina3221(chip: Path) -> Iterator[Sensor]:
    for volts in matching(chip, "in*_input"):
        channel = volts.name.removeprefix("in").removesuffix("_input")
        label = word_in(chip / f"in{channel}_label")
        amperes = chip / f"curr{channel}_input"
        # The chip's last voltages are those over its shunts and have no current.
        if label is not None and label != "NC" and is_there(amperes):
            yield _rail(label, partial(_product_w, volts, amperes))


def _rail(label: str, read: Callable[[], float]) -> Sensor:
    contains = frozenset({EVERYTHING}) if label in _INPUTS else _BEHIND.get(label, frozenset())
    return Sensor(f"{_JETSON} {label}", label, "power", read, contains)


def _power_w(file: Path, scale: float) -> float:
    return _plausible(file, read_number(file, scale))


def _product_w(volts: Path, amperes: Path) -> float:
    return _plausible(amperes, read_number(volts, _MILLI) * read_number(amperes, _MILLI))


def _plausible(file: Path, power_w: float) -> float:
    if power_w < 0:
        raise MachineError(f"{file}: expected a power of 0 W or more, found {power_w:g} W")
    return power_w
