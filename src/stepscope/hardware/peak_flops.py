"""The peak compute and memory rates of this machine, measured once and cached.

A peak is valid for its conditions only. Each set of conditions has a file in the user's cache,
named by their hash. A file that is not a valid peak is ignored and measured again.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from stepscope.errors import MachineError
from stepscope.files import CACHE_VARIABLE, cache_folder, replace_file
from stepscope.hardware.procfs import first_line_of, matching
from stepscope.records.types import Environment, PeakRecord

_CPUS = Path("/sys/devices/system/cpu")
_SCHEMA = 1


@dataclass(frozen=True)
class Conditions:
    """The conditions that measurements of one peak must share; `threads` only for a CPU."""

    cpu: str | None
    cpus_usable: int | None
    highest_mhz: float | None
    torch: str
    device: str
    device_name: str | None
    precision: str
    threads: int | None


@dataclass(frozen=True)
class Peak:
    """The best of several blocks, and its circumstances.

    `pressure_cpu` is the percentage of the 10 s before in which a task waited for a CPU, and
    `cpu_mhz` the clock right after, where known.
    """

    conditions: Conditions
    flop_per_s: float
    bytes_per_s: float
    matrix_size: int
    array_bytes: int
    pressure_cpu: float | None
    cpu_mhz: float | None
    measured_unix_s: float

    def to_json(self) -> PeakRecord:
        """Return the peak as `run.json` records it."""
        return cast("PeakRecord", asdict(self))


def conditions_of(environment: Environment, precision: str) -> Conditions | None:
    """Return the conditions in a run's `environment`; None if torch's entries are missing."""
    if not {"torch", "threads", "device"} <= environment.keys():
        return None
    device = environment["device"]
    return Conditions(
        cpu=environment.get("cpu"),
        cpus_usable=environment.get("cpus_usable"),
        highest_mhz=highest_mhz(),
        torch=environment["torch"],
        device=device.partition(":")[0],
        device_name=environment.get("device_name"),
        precision=precision,
        threads=environment["threads"] if device == "cpu" else None,
    )


def highest_mhz(cpus: Path = _CPUS) -> float | None:
    """Return the highest clock that the CPUs may currently reach; None if unknown."""
    clocks = [
        int(line) / 1000
        for file in matching(cpus, "cpu[0-9]*/cpufreq/scaling_max_freq")
        if (line := first_line_of(file)) is not None and line.strip().isdecimal()
    ]
    return max(clocks, default=None)


def find_peak(conditions: Conditions) -> Peak | None:
    """Return the cached peak for these conditions, if any."""
    try:
        found = json.loads(_file_of(conditions).read_text(encoding="utf-8"))
    except (OSError, ValueError, MachineError):
        return None
    if not isinstance(found, dict) or found.pop("schema", None) != _SCHEMA:
        return None
    if found.pop("conditions", None) != asdict(conditions):
        return None
    try:
        peak = Peak(conditions, **found)
    except TypeError:
        return None
    sound = all(
        isinstance(rate, int | float) and math.isfinite(rate) and rate > 0
        for rate in (peak.flop_per_s, peak.bytes_per_s)
    )
    return peak if sound else None


def keep_better(peak: Peak) -> Peak:
    """Store the better of this peak and the stored one of the same conditions, and return it.

    Each rate counts by itself: a busy machine measures too little, never too much.

    Raises:
        MachineError: the user's cache cannot be written.
    """
    earlier = find_peak(peak.conditions)
    if earlier is not None and earlier.flop_per_s > peak.flop_per_s:
        peak = replace(earlier, bytes_per_s=max(earlier.bytes_per_s, peak.bytes_per_s))
    elif earlier is not None:
        peak = replace(peak, bytes_per_s=max(earlier.bytes_per_s, peak.bytes_per_s))
    file = _file_of(peak.conditions)
    try:
        content = json.dumps({"schema": _SCHEMA, **asdict(peak)}, indent=2) + "\n"
        replace_file(file, [content.encode()])
    except OSError as error:
        raise MachineError(
            f"the peaks were measured, but cannot be kept in {file.parent}: {error.strerror}. Make "
            f"it writable, or name another cache folder by {CACHE_VARIABLE}."
        ) from error
    return peak


def _file_of(conditions: Conditions) -> Path:
    cache = cache_folder()
    if cache is None:
        raise MachineError(
            f"no folder for peaks: this user has no home. Name one by {CACHE_VARIABLE}."
        )
    text = json.dumps(asdict(conditions), sort_keys=True)
    return cache / "peaks" / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
