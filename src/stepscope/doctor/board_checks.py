"""Checks of the board: its model, and a Jetson's software, power mode, memory clock and fan."""

from __future__ import annotations

from pathlib import Path

from stepscope.doctor.check import APPLY, absent, checked, compared
from stepscope.errors import RequestError
from stepscope.hardware.cpu_clock import FIXED, memory_clock
from stepscope.hardware.jetson import (
    board,
    is_jetson,
    is_virtual,
    jetpack_of,
    power_mode,
    power_modes,
    protocol_mode,
    tegra_release,
)
from stepscope.hardware.machine_setup import PUT_BACK, kept_file, kept_states
from stepscope.hardware.thermal import MAX, fan
from stepscope.records.types import MachineCheck


def check_board(root: Path) -> list[MachineCheck]:
    """Return the checks of the board."""
    return [
        *_stand_in(root),
        _board(root),
        _jetpack(root),
        _power_mode(root),
        compared(
            "memory_clock",
            memory_clock(root),
            "a memory clock that moves makes the same transfer take different times",
            FIXED,
        ),
        compared(
            "fan",
            fan(root),
            "a fan that starts late lets the chip get warm and slow down first",
            MAX,
        ),
        _left_over(root),
    ]


def _stand_in(root: Path) -> list[MachineCheck]:
    if root == Path("/"):
        return []
    found = f"{root} stands in for this machine's /proc, /sys and /etc"
    why = "torch, the clock and the read test are still those of the machine it is tried on"
    return [checked("system_root", found, why, "Unset STEPSCOPE_SYSTEM_ROOT.")]


def _board(root: Path) -> MachineCheck:
    why = "figures hold for the machine they were taken on"
    check = compared("board", board(root), why)
    if not is_virtual(root):
        return check
    advice = "Others share its CPUs, caches and disks unseen: repeat measurements in rounds."
    return checked("board", f"{check['found']}; a virtual machine", why, advice)


def _jetpack(root: Path) -> MachineCheck:
    why = "a Jetson's kernel, CUDA and torch come with its JetPack"
    if not is_jetson(root):
        return absent("jetpack", "this is no Jetson", why)
    release = tegra_release(root)
    if release.value is None:
        return absent("jetpack", release.reason, why)
    version = jetpack_of(release.value)
    found = f"L4T {release.value}" + (f", JetPack {version}" if version else "")
    return checked("jetpack", found, why)


def _power_mode(root: Path) -> MachineCheck:
    why = "it decides how many CPUs there are and how fast they, the GPU and the memory are"
    protocol = protocol_mode(root)
    advice = f"The protocol's is {protocol}. {APPLY}"
    check = compared("power_mode", power_mode(root), why, protocol, advice)
    known = ", ".join(power_modes(root).values())
    if check["status"] == "absent" or not known:
        return check
    return {**check, "found": f"{check['found']} (of {known})"}


def _left_over(root: Path) -> MachineCheck:
    why = "a machine that stays prepared takes more power and makes more noise than before"
    try:
        kept = [name for name, _ in kept_states(root)]
    except RequestError as error:
        return checked("prepared", str(error), why, f"Look at {kept_file(root)}.")
    if not kept:
        return checked("prepared", "nothing is set that would have to be put back", why)
    found = f"{', '.join(kept)} set for measuring; what was is in {kept_file(root)}"
    return checked("prepared", found, why, f"As root: {PUT_BACK}.")
