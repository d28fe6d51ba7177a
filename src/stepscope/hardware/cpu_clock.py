"""Clock scaling: the CPUs' governor and turbo, clock ranges, a board's memory clock."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from stepscope.hardware.procfs import (
    Reading,
    is_there,
    matching,
    read_integer,
    read_name,
    read_text,
)

FIXED, SCALING = "fixed", "scaling"
ON, OFF = "on", "off"

_CPU = "sys/devices/system/cpu"
# Turbo switches: the file, and its content when turbo is off.
_TURBO = ((f"{_CPU}/intel_pstate/no_turbo", "1"), (f"{_CPU}/cpufreq/boost", "0"))
# Names of on-chip GPUs in devfreq: Tegra's, and others that contain gpu.
_ON_CHIP_GPUS = ("*gpu*", "*.gp10b", "*.gv11b", "*.ga10b")
# Files of a Jetson that lock, set and bound the clock: Xavier and later; Nano.
MEMORY_CLOCKS = (
    (
        "sys/kernel/debug/bpmp/debug/clk/emc/mrq_rate_locked",
        "sys/kernel/debug/bpmp/debug/clk/emc/rate",
        "sys/kernel/debug/bpmp/debug/clk/emc/max_rate",
    ),
    (
        "sys/kernel/debug/clk/override.emc/clk_state",
        "sys/kernel/debug/clk/override.emc/clk_update_rate",
        "sys/kernel/debug/tegra_bwmgr/emc_max_rate",
    ),
)
_NO_SCALING = "no clock scaling: a virtual machine, or one fixed clock"


def gpus_on_chip(root: Path) -> list[Path]:
    """List the GPUs on the CPUs' chip, as devfreq folders."""
    below = root / "sys/class/devfreq"
    return sorted({gpu for name in _ON_CHIP_GPUS for gpu in matching(below, name)})


def mhz_of(files: Iterable[Path]) -> list[float]:
    """Return the clocks that files state in kHz, without those that cannot be read."""
    read = (read_integer(file).value for file in files)
    return [khz / 1000 for khz in read if khz is not None]


def policies(root: Path) -> list[Path]:
    """List the groups of CPUs that share a clock and have one online.

    Folders of offline CPUs, as in a Jetson's modes with few cores, remain, and their files cannot
    be read.
    """
    found = matching(root / _CPU / "cpufreq", "policy[0-9]*")
    return [
        each
        for each in found
        if read_text(each / "affected_cpus").value or not os.path.lexists(each / "affected_cpus")
    ]


def governor(root: Path) -> Reading[str]:
    """Return the CPUs' governor; several are joined by `+`."""
    read = [read_name(each / "scaling_governor") for each in policies(root)]
    if not read:
        return Reading(None, _NO_SCALING)
    values = {each.value for each in read if each.value is not None}
    return Reading("+".join(sorted(values))) if values else read[0]


def governors(root: Path) -> list[str]:
    """List the available governors."""
    known = [read_name(each / "scaling_available_governors").value for each in policies(root)]
    return sorted({word for text in known if text for word in text.split()})


def clock_ranges(root: Path) -> list[tuple[Path, Path]]:
    """List the files of the lowest and highest allowed clock, of CPUs and on-chip GPUs."""
    found = [(each / "scaling_min_freq", each / "scaling_max_freq") for each in policies(root)]
    gpus = gpus_on_chip(root)
    return found + [(each / "min_freq", each / "max_freq") for each in gpus]


def clocks(root: Path) -> Reading[str]:
    """Return whether the clocks of CPUs and GPU are `fixed`, or `scaling` within a range."""
    ranges = clock_ranges(root)
    if not ranges:
        return Reading(None, _NO_SCALING)
    unknown = None
    for lowest, highest in ranges:
        low, high = read_integer(lowest), read_integer(highest)
        if low.value is None or high.value is None:
            unknown = low.reason or high.reason
        elif low.value < high.value:
            return Reading(SCALING)
    return Reading(FIXED) if unknown is None else Reading(None, unknown)


def turbo_file(root: Path) -> tuple[Path, str] | None:
    """Return the file that switches turbo, and its content when turbo is off."""
    return next(((root / file, off) for file, off in _TURBO if is_there(root / file)), None)


def turbo(root: Path) -> Reading[str]:
    """Return whether CPUs may exceed their nominal clock: `on` or `off`."""
    found = turbo_file(root)
    if found is None:
        return Reading(None, "no switch for turbo (intel_pstate, cpufreq/boost)")
    file, off = found
    return read_integer(file).map(lambda value: OFF if str(value) == off else ON)


def memory_clock_files(root: Path) -> tuple[Path, Path, Path] | None:
    """Return the files that lock, set and bound a board's memory clock."""
    for names in MEMORY_CLOCKS:
        hold, rate, highest = (root / name for name in names)
        if read_integer(hold).value is not None:
            return hold, rate, highest
    return None


def memory_clock(root: Path) -> Reading[str]:
    """Return whether a board's memory clock is `fixed` or `scaling`."""
    files = memory_clock_files(root)
    if files is not None:
        return Reading(FIXED if read_integer(files[0]).value else SCALING)
    tried = [read_integer(root / names[0]).reason or "" for names in MEMORY_CLOCKS]
    denied = [reason for reason in tried if "cannot be read" in reason or "wanted" in reason]
    none = "no memory clock (a Jetson shows it to root)"
    return Reading(None, denied[0] if denied else none)
