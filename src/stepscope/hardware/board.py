"""Which machine this is: a board's model, a Jetson's software, a computer's maker."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.hardware.pseudo_files import Reading, is_there, read_name, read_text

# Which JetPack has which Linux for Tegra: https://developer.nvidia.com/embedded/jetson-linux-archive
_JETPACKS = {
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
    """Name the machine: by its device tree, or by what its maker wrote into the firmware."""
    model = read_name(root / "proc/device-tree/model")
    if model.value is not None:
        return model
    dmi = root / "sys/class/dmi/id"
    words = [read_name(dmi / name).value for name in ("sys_vendor", "product_name")]
    family = read_name(dmi / "product_family").value
    known = [word for word in (*words, family and f"({family})") if word]
    if known:
        return Reading(" ".join(known))
    return Reading(None, "neither a device tree nor the firmware names this machine")


def is_jetson(root: Path) -> bool:
    """Say whether this is a board with NVIDIA's Linux for Tegra."""
    return is_there(root / "etc/nv_tegra_release") or "Jetson" in (board(root).value or "")


def is_virtual(root: Path) -> bool:
    """Say whether the CPU tells of a hypervisor below."""
    lines = (read_text(root / "proc/cpuinfo").value or "").splitlines()
    return any(line.startswith("flags") and " hypervisor" in line for line in lines)


def tegra_release(root: Path) -> Reading[str]:
    """Return the version of Linux for Tegra: `32.5.0`."""
    said = read_text(root / "etc/nv_tegra_release")
    if said.value is None:
        return said
    found = _RELEASE.search(said.value)
    if found is None:
        return Reading(None, f"{root / 'etc/nv_tegra_release'} has no release in it")
    numbers = [found[1], *found[2].rstrip(".").split("."), "0"]
    return Reading(".".join(numbers[:3]))


def jetpack_of(release: str) -> str | None:
    """Name the JetPack that a version of Linux for Tegra came with, as far as it is known here."""
    return _JETPACKS.get(release)
