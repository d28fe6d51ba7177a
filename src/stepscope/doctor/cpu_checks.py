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


def check_processor(root: Path) -> list[MachineCheck]:
    """Return the checks of the CPUs."""
    return [
        _cpus(root),
        compared(
            "governor",
            cpu_clock.governor(root),
            "another governor than performance changes the clock while it is measured",
            "performance",
        ),
        compared(
            "clocks",
            cpu_clock.clocks(root),
            "clocks that move make the same step take different times",
            cpu_clock.FIXED,
        ),
        compared(
            "turbo",
            cpu_clock.turbo(root),
            "with turbo the clock depends on how warm the chip is, and on other cores",
            cpu_clock.OFF,
            'As root, to compare runs: stepscope doctor --apply --require "turbo=off".',
        ),
        _load(root),
        _temperature(root),
        _throttling(root),
    ]


def _cpus(root: Path) -> MachineCheck:
    why = "threads and workers beyond the CPUs that may be used only wait for one another"
    online = read_text(root / "sys/devices/system/cpu/online")
    present, usable = os.cpu_count() or 1, host.usable_cpus() or 1
    quota = cgroup.cpu_quota()
    found = f"{usable} of {present} may be used"
    if online.value is not None:
        found += f", online: {online.value}"
    if quota is not None:
        found += f", a control group allows the time of {quota:g}"
    advice = f"Choose --threads and --workers for {usable}; others are kept from the rest."
    limited = usable < present or quota is not None
    return checked("cpus", found, why, advice if limited else None)


def _load(root: Path) -> MachineCheck:
    why = "what others compute is missing to the training, and differs from run to run"
    said = (read_text(root / "proc/loadavg").value or "").split()
    try:
        waiting = float(said[0])
    except (IndexError, ValueError):
        return absent("load", f"{root / 'proc/loadavg'} has no load average", why)
    found = f"{waiting:g} tasks wanted a CPU in the last minute"
    # Only the live system can name the processes.
    busiest = _busiest() if root == Path("/") else []
    if busiest:
        found += f"; now: {', '.join(f'{name} {cpus:.1f} CPUs' for name, cpus in busiest)}"
    # The load average also counts what has ended since.
    load = sum(cpus for _, cpus in busiest) if busiest else waiting
    advice = "Stop what else runs, or wait for it." if load >= _BUSY_CPUS else None
    return checked("load", found, why, advice)


def _busiest(most: int = 3) -> list[tuple[str, float]]:
    """Return the busiest processes, with the CPUs that each takes."""
    before = _cpu_times()
    begun = time.monotonic()
    time.sleep(_WATCHED_S)
    after, seconds = _cpu_times(), time.monotonic() - begun
    taken = [
        (name, (cpu_s - before[key][1]) / seconds)
        for key, (name, cpu_s) in after.items()
        if key in before and key != os.getpid()
    ]
    busy = sorted(taken, key=lambda each: each[1], reverse=True)
    return [(name, cpus) for name, cpus in busy[:most] if cpus >= 0.05]


def _cpu_times() -> dict[int, tuple[str, float]]:
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        used = process.info["cpu_times"]
        if used is not None:
            found[process.pid] = (process.info["name"] or "?", used.user + used.system)
    return found


def _temperature(root: Path) -> MachineCheck:
    why = "a chip that begins warm slows down sooner than one that begins cool"
    warmth = thermal.temperature_c(root)
    if warmth.value is None:
        return absent("temperature", warmth.reason, why)
    zones = sorted(thermal.zones_c(root).items(), key=lambda zone: zone[1], reverse=True)
    found = ", ".join(f"{name} {celsius:.1f} °C" for name, celsius in zones[:4])
    advice = "Let it cool down; see to the fan." if warmth.value >= _WARM_C else None
    return checked("temperature", found, why, advice)


def _throttling(root: Path) -> MachineCheck:
    why = "a CPU that slowed down for heat before will do so again under the same work"
    times = thermal.throttled(root)
    if times.value is None:
        return absent("throttling", times.reason, why)
    found = f"{times.value:,} times since the machine was started"
    advice = "Cool it better, or lower its clock." if times.value else None
    return checked("throttling", found, why, advice)
