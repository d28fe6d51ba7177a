"""Checks of memory: its size, other processes that hold it, swap and zram."""

from __future__ import annotations

from pathlib import Path

import psutil

from stepscope.doctor.check import absent, checked
from stepscope.hardware import cgroup
from stepscope.hardware.host import SwapArea, swap_areas
from stepscope.hardware.procfs import sizes_in
from stepscope.records.types import MachineCheck
from stepscope.units import format_bytes, format_share

_LITTLE_SHARE = 0.5
_MUCH_SHARE = 0.05  # share of the memory held by one other process
_DESKTOPS = (
    *("Xorg", "Xwayland", "gnome-shell", "kwin", "plasmashell", "mutter", "lxpanel", "wayfire"),
    *("labwc", "weston", "sway", "compiz", "xfwm4", "cinnamon", "WindowServer"),
)


def check_memory(root: Path) -> list[MachineCheck]:
    """Return the checks of the memory."""
    return [_memory(root), _others(root), *_swap(root)]


def _memory(root: Path) -> MachineCheck:
    why = "Training that exceeds the memory swaps, or is killed."
    sizes = sizes_in(root / "proc/meminfo")
    total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
    if not total or available is None:
        return absent("memory", f"{root / 'proc/meminfo'} has no sizes", why)
    found = f"{format_bytes(available)} of {format_bytes(total)} available"
    limit = cgroup.tightest(cgroup.limited())
    if limit is not None and root == Path("/"):
        found += f"; {format_bytes(limit[1])} of {format_bytes(limit[0])} left in its control group"
    advice = "Close other programs. Forecast a run with: stepscope memory MODEL"
    return checked("memory", found, why, advice if available < _LITTLE_SHARE * total else None)


def _others(root: Path) -> MachineCheck:
    why = "Memory of other processes is not available to the training."
    if root != Path("/"):
        return absent("held_by_others", "not available in a system tree", why)
    total = psutil.virtual_memory().total
    named, with_desktop = worth_naming(_resident(), total)
    if not named:
        return checked("held_by_others", "no large process, no desktop", why)
    found = ", ".join(f"{name} {format_bytes(size)}" for name, size in named)
    advice = "Close programs that you do not need."
    if with_desktop:
        advice = "Stop the desktop until the next start: sudo systemctl isolate multi-user"
    return checked("held_by_others", found, why, advice)


def worth_naming(
    processes: list[tuple[str, int]], total_bytes: int
) -> tuple[list[tuple[str, int]], bool]:
    """Return the processes that hold most, the largest of a desktop, and whether there is one."""
    held = sorted(processes, key=lambda each: each[1], reverse=True)
    large = [each for each in held if each[1] > _MUCH_SHARE * total_bytes][:3]
    desktop = [each for each in held if each[0].startswith(_DESKTOPS)][:1]
    return large + [each for each in desktop if each not in large], bool(desktop)


def _resident() -> list[tuple[str, int]]:
    own = {each.pid for each in (psutil.Process(), *psutil.Process().parents())}
    return [
        (process.info["name"] or "?", process.info["memory_info"].rss)
        for process in psutil.process_iter(["name", "memory_info"])
        if process.info["memory_info"] is not None and process.pid not in own
    ]


def _swap(root: Path) -> list[MachineCheck]:
    """Check swap on disk, and zram, which is swap in compressed memory."""
    why = "Steps that wait for swapped pages are not comparable."
    why_zram = "zram compresses memory, which takes CPU time and memory."
    areas = swap_areas(root)
    if areas.value is None:
        return [absent("swap", areas.reason, why), absent("zram", areas.reason, why_zram)]
    disks = [area for area in areas.value if not area.is_zram]
    zram = [area for area in areas.value if area.is_zram]
    empty = "Empty it: sudo swapoff -a && sudo swapon -a"
    turn_off = "Turn it off until the next start: sudo swapoff /dev/zram*"
    used = any(area.used_bytes for area in disks)
    return [
        checked("swap", _shown(disks, "none on disk"), why, empty if used else None),
        checked("zram", _shown(zram, "none"), why_zram, turn_off if zram else None),
    ]


def _shown(areas: list[SwapArea], none: str) -> str:
    if not areas:
        return none
    size = sum(area.size_bytes for area in areas)
    used = sum(area.used_bytes for area in areas)
    names = ", ".join(area.name for area in areas[:3]) + (" ..." if len(areas) > 3 else "")
    share = format_share(used / max(1, size))
    return f"{format_bytes(used)} of {format_bytes(size)} used ({share}) in {names}"
