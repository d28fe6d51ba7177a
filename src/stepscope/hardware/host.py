"""The host: processor, memory, limits, and current pressure."""

from __future__ import annotations

import math
import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from stepscope.hardware import cgroup
from stepscope.hardware.cpu_clock import mhz_of
from stepscope.hardware.procfs import Reading, bytes_of, lines_of, matching, read_text
from stepscope.records.types import Environment

_PROC = Path("/proc")
_PRESSURE = re.compile(rb"^some avg10=([0-9.]+)", re.MULTILINE)
_MHZ = re.compile(rb"^cpu MHz\s*: *([0-9.]+)", re.MULTILINE)


def describe_host() -> Environment:
    """Return what comparable runs must share: processor, memory, system, Python."""
    swap = psutil.swap_memory()
    return {
        "hostname": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_usable": usable_cpus(),
        "memory_bytes": memory_bytes(),
        "memory_available_bytes": available_bytes(),
        "memory_limit_bytes": cgroup_memory_limit_bytes(),
        "swap_bytes": swap.total,
        "swap_used_bytes": swap.used,
    }


def cpu_model() -> str | None:
    """Return the processor's name, or a board's model if the processor has none."""
    for line in lines_of(_PROC / "cpuinfo"):
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def usable_cpus() -> int | None:
    """Return the number of usable CPUs, by affinity and by the control groups' quota."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count()
    allowed = len(os.sched_getaffinity(0))
    quota = cgroup.cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def busy_cpu_s(stat: Path = _PROC / "stat") -> float | None:
    """Return the CPU time that all programs have used on the CPUs that this process may use."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = {b"cpu%d" % number for number in os.sched_getaffinity(0)}
    busy = None
    for line in bytes_of(stat).split(b"\n"):
        name, *ticks = line.split()[:8] or [b""]
        if name in usable and len(ticks) == 7:  # user nice system idle iowait irq softirq
            user, nice, system, _, _, irq, soft = map(int, ticks)
            busy = (busy or 0) + user + nice + system + irq + soft
    return None if busy is None else busy / os.sysconf("SC_CLK_TCK")


def cgroup_memory_limit_bytes() -> int | None:
    """Return the tightest memory limit of this process's control groups, if any."""
    return min(cgroup.limited().values(), default=None)


def oom_kills() -> int | None:
    """Return the number of processes that the kernel killed because memory ran out."""
    for folder in cgroup.own_and_above():
        counted = cgroup.kills_of(folder)
        if counted is not None:
            return counted
    for line in lines_of(_PROC / "vmstat"):
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None


def memory_bytes() -> int:
    """Return the installed memory."""
    return int(psutil.virtual_memory().total)


def available_bytes() -> int:
    """Return the memory that is available without swapping."""
    return int(psutil.virtual_memory().available)


def pressure_percent(resource: str) -> float | None:
    """Return the share of the last 10 s in which a task waited for `cpu`, `io` or `memory`."""
    found = _PRESSURE.search(bytes_of(_PROC / "pressure" / resource))
    return float(found[1]) if found else None


def cpu_mhz() -> float | None:
    """Return the current mean clock of the CPUs, if known."""
    clocks = mhz_of(_clocks()) or [float(mhz) for mhz in _MHZ.findall(bytes_of(_PROC / "cpuinfo"))]
    return sum(clocks) / len(clocks) if clocks else None


@cache
def _clocks() -> list[Path]:
    """Find the files of the CPUs' clocks, once: searching takes longer than reading."""
    return matching(Path("/sys/devices/system/cpu"), "cpu[0-9]*/cpufreq/scaling_cur_freq")


def shared_memory_used_bytes() -> int | None:
    """Return the used bytes of /dev/shm, where loader workers put their batches."""
    status = _shared_memory()
    return None if status is None else (status.f_blocks - status.f_bfree) * status.f_frsize


def shared_memory_free_bytes() -> int | None:
    """Return the free bytes of /dev/shm."""
    status = _shared_memory()
    return None if status is None else status.f_bavail * status.f_frsize


def _shared_memory() -> os.statvfs_result | None:
    try:
        return os.statvfs("/dev/shm")
    except OSError:
        return None


@dataclass(frozen=True)
class SwapArea:
    """A swap area: a disk, a file, or zram, which is compressed memory."""

    name: str
    size_bytes: int
    used_bytes: int

    @property
    def is_zram(self) -> bool:
        """Whether it is compressed memory instead of a disk."""
        return Path(self.name).name.startswith("zram")


def swap_areas(root: Path) -> Reading[list[SwapArea]]:
    """List the areas in `/proc/swaps`; invalid lines are skipped."""
    return read_text(root / "proc/swaps").map(
        lambda text: [
            SwapArea(fields[0], int(fields[2]) * 1024, int(fields[3]) * 1024)
            for fields in map(str.split, text.splitlines()[1:])
            if len(fields) >= 4 and fields[2].isdecimal() and fields[3].isdecimal()
        ]
    )
