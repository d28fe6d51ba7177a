"""RAPL: the energy counters of Intel and AMD processors, in /sys/class/powercap.

A zone `intel-rapl:0` is a package (or `psys`, the platform), `intel-rapl:0:1` a part of it: `core`,
`uncore`, or `dram`, which the package does not include. Since Linux 5.10 only root may read them.
"""

from __future__ import annotations

from pathlib import Path

from stepscope.errors import MachineError
from stepscope.hardware.energy.sensor import Sensor, read_number, word_in
from stepscope.hardware.procfs import is_there, matching
from stepscope.records.types import EVERYTHING

_MICRO = 1e-6
_FOLDER = Path("sys/class/powercap")
_WITHIN_PACKAGE = ("core", "uncore")


def find(root: Path) -> list[Sensor]:
    """List the zones; a package with two interfaces (MSR, MMIO) is listed twice, as one domain."""
    zones = matching(root / _FOLDER, "intel-rapl*:*")
    return [sensor for zone in zones if (sensor := _of_zone(zone)) is not None]


def _of_zone(zone: Path) -> Sensor | None:
    label = word_in(zone / "name")
    if label is None or not is_there(zone / "energy_uj"):
        return None
    domain, contains = label, frozenset[str]()
    if zone.name.count(":") > 1:
        package = word_in(zone.parent / zone.name.rpartition(":")[0] / "name") or "package"
        domain = f"{package} {label}"
    elif label.startswith("package"):
        contains = frozenset(f"{label} {part}" for part in _WITHIN_PACKAGE)
    elif label == "psys":
        # It depends on the maker: mostly the whole machine, including a GPU.
        contains = frozenset({EVERYTHING})
    return Sensor(
        f"rapl {zone.name} {label}",
        domain,
        "counter",
        lambda: read_number(zone / "energy_uj", _MICRO),
        contains,
        _range_j(zone),
    )


def _range_j(zone: Path) -> float | None:
    try:
        return read_number(zone / "max_energy_range_uj", _MICRO) or None
    except MachineError:  # without a range, a wrap looks like a jump back
        return None
