"""The identity of a machine: a board's model, a Jetson's software and power modes."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.hardware.procfs import Reading, is_there, read_name, read_text

# JetPacks by version of Linux for Tegra: https://developer.nvidia.com/embedded/jetson-linux-archive
JETPACKS = {
    "32.4.3": "4.4",
    "32.4.4": "4.4.1",
    "32.5.0": "4.5",
    "32.5.1": "4.5.1",
    "32.6.1": "4.6",
    "32.7.1": "4.6.1",
    "32.7.2": "4.6.2",
    "32.7.3": "4.6.3",
    "32.7.4": "4.6.4",
    "35.1.0": "5.0.2",
    "35.2.1": "5.1",
    "35.3.1": "5.1.1",
    "35.4.1": "5.1.2",
    "35.5.0": "5.1.3",
    "35.6.0": "5.1.4",
    "36.3.0": "6.0",
    "36.4.0": "6.1",
    "36.4.3": "6.2",
}
_RELEASE = re.compile(r"R([0-9]+) \(release\), REVISION: ([0-9.]+)")


def board(root: Path) -> Reading[str]:
    """Return the machine's name from its device tree or its firmware."""
    model = read_name(root / "proc/device-tree/model")
    if model.value is not None:
        return model
    dmi = root / "sys/class/dmi/id"
    words = [read_name(dmi / name).value for name in ("sys_vendor", "product_name")]
    family = read_name(dmi / "product_family").value
    known = [word for word in (*words, family and f"({family})") if word]
    if known:
        return Reading(" ".join(known))
    return Reading(None, "no name in the device tree or the firmware")


def is_jetson(root: Path) -> bool:
    """Return whether this is a board with NVIDIA's Linux for Tegra."""
    return is_there(root / "etc/nv_tegra_release") or "Jetson" in (board(root).value or "")


def is_virtual(root: Path) -> bool:
    """Return whether the CPU reports a hypervisor."""
    lines = (read_text(root / "proc/cpuinfo").value or "").splitlines()
    return any(line.startswith("flags") and " hypervisor" in line for line in lines)


def tegra_release(root: Path) -> Reading[str]:
    """Return the version of Linux for Tegra: `32.5.0`."""
    said = read_text(root / "etc/nv_tegra_release")
    if said.value is None:
        return said
    found = _RELEASE.search(said.value)
    if found is None:
        return Reading(None, f"{root / 'etc/nv_tegra_release'} has no release")
    numbers = [found[1], *found[2].rstrip(".").split("."), "0"]
    return Reading(".".join(numbers[:3]))


MODES = "etc/nvpmodel.conf"
STATUS = "var/lib/nvpmodel/status"

_MODE = re.compile(r"^<\s*POWER_MODEL\s+ID=([0-9]{1,4})\s+NAME=([\w.:+/-]{1,64})\s*>", re.MULTILINE)
_DEFAULT = re.compile(r"^<\s*PM_CONFIG\s+DEFAULT=([0-9]{1,4})\s*>", re.MULTILINE)
_STATUS = re.compile(r"pmode:([0-9]{1,6})\b")
_WATTS = re.compile(r"([0-9]+)W")


def power_modes(root: Path) -> dict[int, str]:
    """Return the names of the modes by number; empty on other machines."""
    return {int(number): name for number, name in _MODE.findall(_conf(root))}


def power_mode(root: Path) -> Reading[str]:
    """Return the name of the current power mode."""
    return mode_number(root).map(lambda number: power_modes(root).get(number, f"mode {number}"))


def mode_number(root: Path) -> Reading[int]:
    """Return the number of the current power mode."""
    status = read_text(root / STATUS)
    if status.value is not None:
        found = _STATUS.search(status.value)
        if found is None:
            said = f"wanted something like pmode:0000, found {status.value[:40]!r}"
            return Reading(None, f"{root / STATUS}: {said}")
        return Reading(int(found[1]))
    default = _DEFAULT.search(_conf(root))
    if default is not None:
        return Reading(int(default[1]))
    if not is_jetson(root):
        return Reading(None, "only a Jetson has power modes")
    return Reading(None, status.reason)


def number_of(mode: str, root: Path) -> int | None:
    """Return the number of a power mode given by name or number; None if unknown."""
    modes = power_modes(root)
    by_word = {str(number): number for number in modes}
    by_word |= {name.lower(): number for number, name in modes.items()}
    return by_word.get(mode.lower())


def protocol_mode(root: Path) -> str | None:
    """Return the mode of the edge protocol: 15 W on all cores of a Xavier NX, else the largest."""
    names = list(power_modes(root).values())
    if "Xavier NX" in (board(root).value or ""):
        names = [name for name in names if "15W" in name] or names
    return max(names, key=_size, default=None)


def _size(name: str) -> tuple[bool, int, str]:
    """Return a sort key of a mode: unlimited ones last, then by watts, then by name."""
    watts = _WATTS.search(name)
    return name.startswith("MAXN"), int(watts[1]) if watts else 0, name


def _conf(root: Path) -> str:
    return read_text(root / MODES).value or ""
