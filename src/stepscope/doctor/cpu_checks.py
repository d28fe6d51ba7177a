"""Checks of the CPUs: number, clock, load by other processes, temperature."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from stepscope.doctor.check import absent, checked, compared
from stepscope.hardware import cgroup, cpu_clock, host, thermal
from stepscope.hardware.procfs import read_text
from stepscope.records.types import MachineCheck

_WATCHED_S = 0.3
_BUSY_CPUS = 0.5  # load of other processes that distorts a measurement
_WARM_C = 80.0
_SCALES = "A clock that changes during a measurement adds noise."


def check_processor(root: Path) -> list[MachineCheck]:
    """Return the checks of the CPUs."""
    return [
        _cpus(root),
        compared("governor", cpu_clock.governor(root), _SCALES, "performance"),
        compared("clocks", cpu_clock.clocks(root), _SCALES, cpu_clock.FIXED),
        compared(
            "turbo",
            cpu_clock.turbo(root),
            "With turbo the clock depends on temperature and on the load of other cores.",
            cpu_clock.OFF,
            "As root: stepscope doctor --apply --require turbo=off",
        ),
        _load(root),
        _temperature(root),
        _throttling(root),
    ]


def _cpus(root: Path) -> MachineCheck:
    why = "More threads and workers than usable CPUs only compete with each other."
    online = read_text(root / "sys/devices/system/cpu/online")
    present, usable = os.cpu_count() or 1, host.usable_cpus() or 1
    quota = cgroup.cpu_quota()
    found = f"{usable} of {present} usable"
    if online.value is not None:
        found += f", online {online.value}"
    if quota is not None:
        found += f", limited to {quota:g} by a control group"
    advice = f"Choose --threads and --workers for {usable} CPUs."
    limited = usable < present or quota is not None
    return checked("cpus", found, why, advice if limited else None)


def _load(root: Path) -> MachineCheck:
    why = "Other programs slow the training down, and differently in each run."
    said = (read_text(root / "proc/loadavg").value or "").split()
    try:
        waiting = float(said[0])
    except (IndexError, ValueError):
        return absent("load", f"{root / 'proc/loadavg'} has no load average", why)
    found = f"load average {waiting:g}"
    # Only the live system can name the processes.
    busiest = _busiest() if root == Path("/") else []
    if busiest:
        found += f"; now: {', '.join(f'{name} {cpus:.1f} CPUs' for name, cpus in busiest)}"
    # The load average also counts what has ended since.
    load = sum(cpus for _, cpus in busiest) if busiest else waiting
    advice = "Stop other programs, or wait until they are done." if load >= _BUSY_CPUS else None
    return checked("load", found, why, advice)


def _busiest(most: int = 3) -> list[tuple[str, float]]:
    """Return the busiest processes, with the CPUs that each takes."""
    list(psutil.process_iter(["cpu_percent"]))  # psutil measures from this call to the next
    time.sleep(_WATCHED_S)
    taken = [
        (process.info["name"] or "?", (process.info["cpu_percent"] or 0.0) / 100)
        for process in psutil.process_iter(["name", "cpu_percent"])
        if process.pid != os.getpid()
    ]
    busy = sorted(taken, key=lambda each: each[1], reverse=True)
    return [(name, cpus) for name, cpus in busy[:most] if cpus >= 0.05]


def _temperature(root: Path) -> MachineCheck:
    why = "A chip that is already warm throttles sooner."
    warmth = thermal.temperature_c(root)
    if warmth.value is None:
        return absent("temperature", warmth.reason, why)
    zones = sorted(thermal.zones_c(root).items(), key=lambda zone: zone[1], reverse=True)
    found = ", ".join(f"{name} {celsius:.1f} °C" for name, celsius in zones[:4])
    advice = "Let the machine cool down, and check its fan." if warmth.value >= _WARM_C else None
    return checked("temperature", found, why, advice)


def _throttling(root: Path) -> MachineCheck:
    why = "A CPU that has throttled before will throttle again under the same load."
    times = thermal.throttled(root)
    if times.value is None:
        return absent("throttling", times.reason, why)
    found = f"{times.value:,} times since the machine started"
    advice = "Improve the cooling, or lower the clock." if times.value else None
    return checked("throttling", found, why, advice)
