"""Checks of the board: its model, and a Jetson's software, power mode, memory clock and fan."""

from __future__ import annotations

from pathlib import Path

from stepscope.doctor.check import APPLY, absent, checked, compared
from stepscope.errors import RequestError
from stepscope.hardware.cpu_clock import FIXED, memory_clock
from stepscope.hardware.jetson import (
    JETPACKS,
    board,
    is_jetson,
    is_virtual,
    power_mode,
    power_modes,
    protocol_mode,
    tegra_release,
)
from stepscope.hardware.machine_setup import RESTORE, kept_file, kept_states
from stepscope.hardware.thermal import MAX, fan
from stepscope.records.types import MachineCheck


def check_board(root: Path) -> list[MachineCheck]:
    """Return the checks of the board."""
    return [
        *_stand_in(root),
        _board(root),
        _jetpack(root),
        _power_mode(root),
        compared("memory_clock", memory_clock(root), "A scaling clock adds noise.", FIXED),
        compared("fan", fan(root), "A fan that starts late lets the chip throttle first.", MAX),
        _left_over(root),
    ]


def _stand_in(root: Path) -> list[MachineCheck]:
    if root == Path("/"):
        return []
    found = f"{root} replaces /proc, /sys and /etc"
    why = "torch, the clock and the read test still use the real machine."
    return [checked("system_root", found, why, "Unset STEPSCOPE_SYSTEM_ROOT.")]


def _board(root: Path) -> MachineCheck:
    why = "Measurements are only valid for the machine they were taken on."
    check = compared("board", board(root), why)
    if not is_virtual(root):
        return check
    why = "Other virtual machines may share its CPUs, caches and disks."
    advice = "Repeat measurements: sweep, workers and compare do so in rounds."
    name = "virtual machine" if check["status"] == "absent" else f"{check['found']}, virtual"
    return checked("board", name, why, advice)


def _jetpack(root: Path) -> MachineCheck:
    why = "JetPack determines the kernel, CUDA and torch of a Jetson."
    if not is_jetson(root):
        return absent("jetpack", "not a Jetson", why)
    release = tegra_release(root)
    if release.value is None:
        return absent("jetpack", release.reason, why)
    version = JETPACKS.get(release.value)
    found = f"L4T {release.value}" + (f", JetPack {version}" if version else "")
    return checked("jetpack", found, why)


def _power_mode(root: Path) -> MachineCheck:
    why = "It sets the number of CPUs and the clocks of CPUs, GPU and memory."
    protocol = protocol_mode(root)
    advice = f"The edge protocol uses {protocol}. {APPLY}"
    check = compared("power_mode", power_mode(root), why, protocol, advice)
    known = ", ".join(power_modes(root).values())
    if check["status"] == "absent" or not known:
        return check
    return {**check, "found": f"{check['found']} (of {known})"}


def _left_over(root: Path) -> MachineCheck:
    why = "Fixed clocks and a fast fan use more power than necessary."
    try:
        kept = [name for name, _ in kept_states(root)]
    except RequestError as error:
        return checked("prepared", str(error), why, f"Check {kept_file(root)}.")
    if not kept:
        return checked("prepared", "no settings to restore", why)
    found = f"{', '.join(kept)} set by --apply; previous values in {kept_file(root)}"
    return checked("prepared", found, why, f"As root: {RESTORE}")
