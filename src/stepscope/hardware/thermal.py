"""Temperatures of the chip, its thermal throttle counts, and a board's fan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from stepscope.hardware.procfs import (
    Reading,
    is_there,
    matching,
    read_integer,
    read_name,
    read_text,
)

# Zone types of the chip; others are batteries, radios and regulators.
_OF_THE_CHIP = ("cpu", "gpu", "soc", "tj", "pkg", "core", "acpitz", "k10temp")
_POSSIBLE_C = (-40.0, 150.0)  # a disabled sensor reports -256 or the like

_TRIPS = ("passive", "hot", "critical")
_LEAST_TRIP_C = 50.0  # lower trip points start a fan, or are not set


@dataclass(frozen=True)
class Zone:
    """A thermal zone of the chip."""

    folder: Path
    kind: str
    trip_c: float | None  # where throttling begins; None if unknown

    def celsius(self) -> float | None:
        """Return its temperature; None while it is missing or implausible."""
        said = read_integer(self.folder / "temp").value
        if said is None or not _POSSIBLE_C[0] < said / 1000 < _POSSIBLE_C[1]:
            return None
        return said / 1000


def find_zones(root: Path) -> list[Zone]:
    """List the thermal zones of the chip, whether or not they can be read now."""
    return [
        Zone(folder, kind, min(_trips_c(folder), default=None))
        for folder in matching(root / "sys/class/thermal", "thermal_zone[0-9]*")
        if (kind := read_name(folder / "type").value) is not None
        and any(word in kind.lower() for word in _OF_THE_CHIP)
    ]


def _trips_c(zone: Path) -> list[float]:
    """List the temperatures at which a zone slows the chip down."""
    types = matching(zone, "trip_point_*_type")
    kinds = [file for file in types if read_text(file).value in _TRIPS]
    files = [file.with_name(file.name.replace("_type", "_temp")) for file in kinds]
    read = [said / 1000 for file in files if (said := read_integer(file).value) is not None]
    return [trip_c for trip_c in read if trip_c >= _LEAST_TRIP_C]


def zones_c(root: Path) -> dict[str, float]:
    """Return the temperature of each thermal zone of the chip, by the zone's type."""
    found: dict[str, float] = {}
    for zone in find_zones(root):
        celsius = zone.celsius()
        if celsius is not None:
            found[zone.kind] = max(celsius, found.get(zone.kind, celsius))
    return found


def temperature_c(root: Path) -> Reading[float]:
    """Return the temperature of the hottest zone of the chip."""
    hottest = max(zones_c(root).values(), default=None)
    return Reading(hottest, None if hottest is not None else "no CPU or GPU temperature sensor")


def throttled(root: Path) -> Reading[int]:
    """Return how often cores and packages were throttled since the machine started."""
    count = sum_throttle_counts(find_throttle_counts(root))
    return Reading(count, None if count is not None else "no throttle counters (only on x86)")


def find_throttle_counts(root: Path) -> list[list[Path]]:
    """Find the throttle count files, in groups that count the same: CPUs repeat their package."""
    of_core: list[list[Path]] = []
    of_package: dict[int | None, list[Path]] = defaultdict(list)
    for folder in matching(root / "sys/devices/system/cpu", "cpu[0-9]*/thermal_throttle"):
        of_core.append([folder / "core_throttle_count"])
        package = read_integer(folder.parent / "topology/physical_package_id").value
        of_package[package].append(folder / "package_throttle_count")
    return [*of_core, *of_package.values()]


def sum_throttle_counts(groups: list[list[Path]]) -> int | None:
    """Return the sum over the groups of files; None if there are no counts."""
    read = [[read_integer(file).value for file in group] for group in groups]
    known = [[count for count in counts if count is not None] for counts in read]
    return sum(max(counts) for counts in known if counts) if any(known) else None


FASTEST = 255
MAX = "max"
_OLD = "sys/devices/pwm-fan"  # kernels of L4T 32
_NEW = "sys/devices/platform/pwm-fan/hwmon"  # those after


def speed_file(root: Path) -> Path | None:
    """Return the file that sets the fan's speed."""
    candidates = [root / _OLD / "target_pwm", *matching(root / _NEW, "hwmon*/pwm1")]
    return next((file for file in candidates if is_there(file)), None)


def control_file(root: Path) -> Path | None:
    """Return the file that disables the kernel's fan control, if any."""
    file = root / _OLD / "temp_control"
    return file if is_there(file) else None


def fan(root: Path) -> Reading[str]:
    """Return the fan's set speed: `max`, or a number up to 255."""
    file = speed_file(root)
    if file is None:
        return Reading(None, "no fan with adjustable speed (pwm-fan)")
    return read_integer(file).map(lambda speed: MAX if speed >= FASTEST else str(speed))
