"""One process and its children, seen from outside: memory, CPU, I/O, faults.

Proportional sizes come from the kernel's `smaps_rollup`, which takes milliseconds for a large
process, so they are read only when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from stepscope.hardware.descendants import descendants
from stepscope.hardware.pseudo_files import status_bytes


@dataclass(frozen=True)
class TreeReading:
    """A process tree at one moment. None: this system does not tell."""

    rss_bytes: int
    peak_rss_bytes: int | None
    shared_rss_bytes: int | None
    workers: int
    main_cpu_s: float
    workers_cpu_s: float
    read_bytes: int | None
    major_faults: int | None
    pss_bytes: int | None
    workers_private_bytes: int | None
    swap_bytes: int | None


@dataclass(frozen=True)
class _Sizes:
    pss_bytes: int | None
    private_bytes: int | None
    swap_bytes: int | None


def read_tree(main: psutil.Process, *, sizes: bool) -> TreeReading | None:
    """Read a process and its descendants; None when it has ended.

    `sizes` also reads the proportional and private sizes. A child that ends meanwhile is left out.
    """
    try:
        with main.oneshot():
            rss = main.memory_info().rss
            cpu = main.cpu_times()
        workers = descendants(main)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    if rss == 0:
        return None  # it has ended, and nobody has asked how yet
    status = status_bytes(main.pid)
    worker_cpu = [used for worker in workers if (used := _cpu_s(worker)) is not None]
    everyone = [main, *workers]
    measured = [_sizes(process) for process in everyone] if sizes else []
    return TreeReading(
        rss_bytes=rss,
        peak_rss_bytes=status.get("VmHWM"),
        shared_rss_bytes=status.get("RssShmem"),
        workers=len(worker_cpu),
        main_cpu_s=cpu.user + cpu.system,
        workers_cpu_s=sum(worker_cpu),
        read_bytes=_total([_read_bytes(process) for process in everyone]),
        major_faults=_total([_major_faults(process.pid) for process in everyone]),
        pss_bytes=_total([size.pss_bytes for size in measured]),
        workers_private_bytes=_total([size.private_bytes for size in measured[1:]], nothing=0)
        if sizes
        else None,
        swap_bytes=_total([size.swap_bytes for size in measured]),
    )


def resident_bytes(process: psutil.Process) -> int | None:
    """Return the resident size of one process, in some 20 µs; None when it has ended."""
    try:
        return int(process.memory_info().rss) or None
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def youngest_child(process: psutil.Process) -> psutil.Process | None:
    """Return the process that another has started last, if it has started any that works.

    A helper of Python's own that only tidies up (`multiprocessing.resource_tracker`) is none.
    """
    try:
        children = sorted(process.children(), key=psutil.Process.create_time, reverse=True)
        for child in children:
            if not any("resource_tracker" in word for word in child.cmdline()):
                return child
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass  # one of them has just ended: the next look finds the others
    return None


def _total(values: list[int | None], nothing: int | None = None) -> int | None:
    """Add up what is known; where nothing is, the total is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known else nothing


def _cpu_s(process: psutil.Process) -> float | None:
    try:
        used = process.cpu_times()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return float(used.user + used.system)


def _read_bytes(process: psutil.Process) -> int | None:
    try:
        return int(process.io_counters().read_bytes)
    except (psutil.NoSuchProcess, psutil.AccessDenied, AttributeError):
        return None  # macOS has no such counter


def _sizes(process: psutil.Process) -> _Sizes:
    try:
        full = process.memory_full_info()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return _Sizes(None, None, None)
    return _Sizes(getattr(full, "pss", None), full.uss, getattr(full, "swap", None))


def _major_faults(pid: int) -> int | None:
    """Read how often the process waited for a page from disk: field 12 of `stat`."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()  # a process name may hold spaces and brackets
    return int(after_name[9]) if len(after_name) > 9 else None
