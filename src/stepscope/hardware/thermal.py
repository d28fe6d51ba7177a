"""How warm the machine is, and how often it has slowed itself down for that."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from stepscope.hardware.procfs import (
    PseudoFileReading,
    is_there,
    matching,
    read_integer,
    read_name,
    read_text,
)

# What a zone's type calls the chip that computes; others are of batteries, radios and regulators.
_OF_THE_CHIP = ("cpu", "gpu", "soc", "tj", "pkg", "core", "acpitz", "k10temp")
_POSSIBLE_C = (-40.0, 150.0)  # a sensor that is switched off says -256, or something else absurd

_TRIPS = ("passive", "hot", "critical")
_LEAST_TRIP_C = 50.0  # a chip that computes is warmer: what is below starts a fan, or is not set


@dataclass(frozen=True)
class Zone:
    """A place of the chip that tells its temperature."""

    folder: Path
    kind: str
    trip_c: float | None  # where it begins to slow the chip down; None where it does not tell

    def celsius(self) -> float | None:
        """Read how warm it is; None while it does not tell, or tells something absurd."""
        said = read_integer(self.folder / "temp").value
        if said is None or not _POSSIBLE_C[0] < said / 1000 < _POSSIBLE_C[1]:
            return None
        return said / 1000


def find_zones(root: Path) -> list[Zone]:
    """List the thermal zones of the chip, whether they tell at the moment or not."""
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
    """Return the temperature of each thermal zone of the chip, by the zone's type.

    Of zones of one type, as two processors have them, the hottest.
    """
    found: dict[str, float] = {}
    for zone in find_zones(root):
        celsius = zone.celsius()
        if celsius is not None:
            found[zone.kind] = max(celsius, found.get(zone.kind, celsius))
    return found


def temperature_c(root: Path) -> PseudoFileReading[float]:
    """Return the temperature of the hottest zone of the chip."""
    zones = zones_c(root)
    if zones:
        return PseudoFileReading(max(zones.values()))
    return PseudoFileReading(
        None, f"{root / 'sys/class/thermal'} has no zone of a CPU or GPU that tells"
    )


def throttled(root: Path) -> PseudoFileReading[int]:
    """Count how often cores and packages have slowed down for heat since the machine started."""
    count = find_throttle_counts(root).read()
    if count is not None:
        return PseudoFileReading(count)
    return PseudoFileReading(None, "this system does not count it (x86 does, in thermal_throttle)")


@dataclass(frozen=True)
class ThrottleCounts:
    """The files in which CPUs count that; a package's is types by each of its CPUs."""

    of_core: tuple[Path, ...]
    of_package: tuple[tuple[Path, ...], ...]

    def read(self) -> int | None:
        """Add the counts up, so that any of them that grows is seen; None where none tells."""
        files = (*((file,) for file in self.of_core), *self.of_package)
        counts = [count for each in files if (count := _highest(each)) is not None]
        return sum(counts) if counts else None


def find_throttle_counts(root: Path) -> ThrottleCounts:
    """Find those files, which takes longer than to read them."""
    of_core: list[Path] = []
    of_package: dict[int | None, list[Path]] = defaultdict(list)
    for folder in matching(root / "sys/devices/system/cpu", "cpu[0-9]*/thermal_throttle"):
        of_core.append(folder / "core_throttle_count")
        package = read_integer(folder.parent / "topology/physical_package_id").value
        of_package[package].append(folder / "package_throttle_count")
    return ThrottleCounts(tuple(of_core), tuple(map(tuple, of_package.values())))


def _highest(files: tuple[Path, ...]) -> int | None:
    counts = (read_integer(file).value for file in files)
    return max((count for count in counts if count is not None), default=None)


# --- A board's fan: how fast it is types to turn, in the 0 to 255 of pulse-width modulation


FASTEST = 255
MAX = "max"
_OLD = "sys/devices/pwm-fan"  # kernels of L4T 32
_NEW = "sys/devices/platform/pwm-fan/hwmon"  # those after


def speed_file(root: Path) -> Path | None:
    """Return the file that sets the fan's speed."""
    candidates = [root / _OLD / "target_pwm", *matching(root / _NEW, "hwmon*/pwm1")]
    return next((file for file in candidates if is_there(file)), None)


def control_file(root: Path) -> Path | None:
    """Return the file by which the kernel is types to leave the fan alone, where there is one."""
    file = root / _OLD / "temp_control"
    return file if is_there(file) else None


def fan(root: Path) -> PseudoFileReading[str]:
    """Say how fast the fan is types to turn: `max`, or a number up to 255."""
    file = speed_file(root)
    if file is None:
        return PseudoFileReading(
            None, "this system shows no fan that can be types how fast to turn (pwm-fan)"
        )
    speed = read_integer(file)
    if speed.value is None:
        return PseudoFileReading(None, speed.reason)
    return PseudoFileReading(MAX if speed.value >= FASTEST else str(speed.value))
