"""The processor's counters through Linux's perf events: cycles, instructions, cache misses.

A counter counts for the calling thread and for threads started later, not for forked processes. If
there are more counters than the processor supports, they take turns, and counts are extrapolated.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stepscope.hardware.procfs import read_text

_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")

# include/uapi/linux/perf_event.h
_HARDWARE = 0
_ATTRIBUTES_BYTES = 136  # PERF_ATTR_SIZE_VER8
_TIMES_ENABLED_AND_RUNNING = 1 | 2
_INHERIT, _NOT_KERNEL, _NOT_HYPERVISOR, _THREADS_ONLY = 1 << 1, 1 << 5, 1 << 6, 1 << 35
_CLOSE_ON_EXEC = 8
_READING = struct.Struct("QQQ")

# The system call number of perf_event_open: arch/*/entry/syscalls.
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241, "armv7l": 364, "riscv64": 241, "ppc64le": 319}


@dataclass(frozen=True)
class Event:
    """An event to count, in the kernel's numbers."""

    kind: int
    number: int


HARDWARE = {
    "cycles": Event(_HARDWARE, 0),
    "instructions": Event(_HARDWARE, 1),
    "cache_misses": Event(_HARDWARE, 3),
}


class CounterReading(NamedTuple):
    """The count so far, and the times for which the counter was enabled and running."""

    counted: int
    enabled_ns: int
    running_ns: int


@dataclass(frozen=True)
class Counters:
    """Open counters by name, and the reasons for missing ones."""

    descriptors: Mapping[str, int]
    absent: Mapping[str, str]

    def read(self) -> dict[str, CounterReading]:
        """Read every counter. Costs microseconds, more with more threads."""
        return {
            name: CounterReading(*_READING.unpack(os.read(descriptor, _READING.size)))
            for name, descriptor in self.descriptors.items()
        }

    def close(self) -> None:
        """Close the counters."""
        for descriptor in self.descriptors.values():
            os.close(descriptor)


def open_counters(events: Mapping[str, Event]) -> Counters:
    """Open counters for this thread and its future threads, with reasons for missing ones.

    Call it before computing threads start.
    """
    number = _SYSTEM_CALL.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        where = f"{platform.system()} on {platform.machine()}"
        reason = f"hardware counters need Linux perf events, found {where}"
        return Counters({}, dict.fromkeys(events, reason))
    opened: dict[str, int] = {}
    absent: dict[str, str] = {}
    for name, event in events.items():
        descriptor, fault = _open(number, event)
        if fault:
            absent[name] = explain(fault)
        else:
            opened[name] = descriptor
    return Counters(opened, absent)


def _open(system_call: int, event: Event) -> tuple[int, int]:
    """Return a descriptor, or the number of the error."""
    attributes = bytearray(_ATTRIBUTES_BYTES)
    flags = _INHERIT | _THREADS_ONLY | _NOT_KERNEL | _NOT_HYPERVISOR
    given = (event.kind, _ATTRIBUTES_BYTES, event.number, 0, 0, _TIMES_ENABLED_AND_RUNNING, flags)
    struct.pack_into("IIQQQQQ", attributes, 0, *given)
    buffer = (ctypes.c_char * _ATTRIBUTES_BYTES).from_buffer(attributes)
    system = ctypes.CDLL(None, use_errno=True)
    this_thread, any_cpu, no_group = 0, -1, -1
    numbers = map(ctypes.c_long, (this_thread, any_cpu, no_group, _CLOSE_ON_EXEC))
    descriptor = system.syscall(ctypes.c_long(system_call), buffer, *numbers)
    return descriptor, ctypes.get_errno() if descriptor < 0 else 0


def explain(fault: int) -> str:
    """Return the meaning of an error on opening a counter, and a remedy."""
    if fault in (errno.EACCES, errno.EPERM):
        level = read_text(_PARANOID).value or "unknown"
        return (
            f"perf events are not permitted (perf_event_paranoid is {level}, or a container "
            "forbids them). As root: sysctl kernel.perf_event_paranoid=2"
        )
    if fault in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        return "the processor has no such counter (most virtual machines have none)"
    if fault in (errno.EINVAL, errno.E2BIG):
        return "counting the threads of one process needs Linux 5.13 or newer"
    if fault == errno.ENOSYS:
        return "this kernel was built without perf events"
    return f"the counter could not be opened: {os.strerror(fault)}"
