"""Checks of instruments: the clock, the energy sensors, torch and its accelerators."""

from __future__ import annotations

import timeit
from pathlib import Path

from stepscope.doctor.check import absent, checked
from stepscope.errors import StepscopeError
from stepscope.hardware.conditions import CLOCK_SOURCES, clock_source
from stepscope.hardware.energy import find_sensors
from stepscope.hardware.gpu import may_have_gpu
from stepscope.hardware.host import usable_cpus
from stepscope.hardware.procfs import read_name
from stepscope.meter.clock import now_ns, resolution_s
from stepscope.records.types import MachineCheck, TorchBuild
from stepscope.supervisor.ask_process import TORCH_BUILD, ask_process
from stepscope.telemetry.energy_sampler import refresh_periods
from stepscope.units import format_bytes

_SLOW_READING_NS = 1000.0
_READINGS = 400
_WATCHED_S = 0.25  # seconds per sensor, to measure its refresh period
_WATCHED_TOTAL_S = 1.5


def check_instruments(root: Path) -> list[MachineCheck]:
    """Return the checks of the clock, the energy sensors, torch and its accelerators."""
    return [_clock(root), check_energy(root), *_torch(root)]


def _clock(root: Path) -> MachineCheck:
    why = "Nothing shorter than one reading of the clock can be timed."
    source = clock_source(root)
    cost = min(timeit.repeat(now_ns, number=_READINGS, repeat=5)) / _READINGS * 1e9
    found = (
        f"perf_counter, kernel clock source {source.value or 'unknown'}, "
        f"resolution {resolution_s(200) * 1e9:.0f} ns, {cost:.0f} ns per reading"
    )
    if cost <= _SLOW_READING_NS:
        return checked("clock", found, why)
    known = read_name(root / CLOCK_SOURCES / "available_clocksource").value
    others = f" Available clock sources: {known}." if known else ""
    return checked("clock", found, why, f"Reading the clock is slow.{others}")


def check_energy(root: Path) -> MachineCheck:
    """Return the checks of the energy sensors, with their measured refresh periods."""
    why = "Energy is only reported where a sensor measures it."
    sensors = find_sensors(root)
    if not sensors.working:
        return absent("energy", sensors.why_none, why)
    each_s = min(_WATCHED_S, _WATCHED_TOTAL_S / len(sensors.working))
    periods_s = refresh_periods(sensors, moment_s=each_s)
    found = ", ".join(f"{name} ({_period(each, each_s)})" for name, each in periods_s.items())
    refused = "; ".join(sensors.refused.values())
    return checked(
        "energy", found, why, f"Sensors that cannot be read: {refused}." if refused else None
    )


def _period(period_s: float | None, within_s: float) -> str:
    if period_s is None:
        return f"no update within {within_s * 1e3:.0f} ms"
    return f"updated every {period_s * 1e3:.3g} ms"


def _torch(root: Path) -> list[MachineCheck]:
    why = "Step times depend on the build of torch and its number of threads."
    why_accelerator = "A device with its own memory has a second memory limit."
    try:
        built: TorchBuild = ask_process(TORCH_BUILD, {})
    except StepscopeError as error:
        return [
            absent("torch", str(error), why),
            absent("accelerator", "torch cannot be imported", why_accelerator),
        ]
    return [_build(built, why), _accelerator(built, root, why_accelerator)]


def _build(built: TorchBuild, why: str) -> MachineCheck:
    libraries = ", mkldnn" * built["mkldnn"] + ", openmp" * built["openmp"]
    found = (
        f"{built['version']}, {built['threads']} threads, "
        f"{built['math_library'] or 'unknown math library'}"
        f"{libraries}, {built['cpu_instructions']}"
    )
    usable = usable_cpus()
    too_many = usable is not None and built["threads"] > usable
    advice = f"Use --threads {usable}: there are no more usable CPUs."
    return checked("torch", found, why, advice if too_many else None)


def _accelerator(built: TorchBuild, root: Path, why: str) -> MachineCheck:
    devices = built["accelerators"]
    if devices:
        found = "; ".join(
            f"{each['name']}, {format_bytes(each['memory_bytes'])} "
            f"{'shared with the CPU' if each['shared'] else 'dedicated'}"
            for each in devices
        )
        return checked("accelerator", found, why)
    if may_have_gpu(root):
        found = f"torch {built['version']} cannot use the NVIDIA GPU of this machine"
        advice = (
            "Install a build of torch with CUDA."
            if built["cuda"] is None
            else "Check the driver with nvidia-smi; on a Jetson, the JetPack that torch needs."
        )
        return checked("accelerator", found, why, advice)
    return absent("accelerator", f"torch {built['version']} finds none", why)
