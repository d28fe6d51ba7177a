"""The peak compute and memory rates of this machine, measured once and cached.

A peak is valid for its conditions only. Each set of conditions has a file in the user's cache,
named by their hash. A file that is not a valid peak is ignored and measured again.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import cast

from stepscope.errors import MachineError
from stepscope.files import CACHE_VARIABLE, cache_folder, replace_file
from stepscope.hardware.cpu_clock import mhz_of
from stepscope.hardware.procfs import matching
from stepscope.records.types import Environment, PeakConditions, PeakRecord

_CPUS = Path("/sys/devices/system/cpu")
_SCHEMA = 1


def conditions_of(environment: Environment, precision: str) -> PeakConditions | None:
    """Return the conditions in a run's `environment`; None if torch's entries are missing."""
    if not {"torch", "threads", "device"} <= environment.keys():
        return None
    device = environment["device"]
    return PeakConditions(
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
    return max(mhz_of(matching(cpus, "cpu[0-9]*/cpufreq/scaling_max_freq")), default=None)


def find_peak(conditions: PeakConditions) -> PeakRecord | None:
    """Return the cached peak for these conditions, if any."""
    try:
        found = json.loads(_file_of(conditions).read_text(encoding="utf-8"))
    except (OSError, ValueError, MachineError):
        return None
    if not isinstance(found, dict) or found.pop("schema", None) != _SCHEMA:
        return None
    if found.keys() != PeakRecord.__required_keys__ or found["conditions"] != conditions:
        return None
    sound = all(
        isinstance(rate, int | float) and math.isfinite(rate) and rate > 0
        for rate in (found["flop_per_s"], found["bytes_per_s"])
    )
    return cast("PeakRecord", found) if sound else None


def keep_better(peak: PeakRecord) -> PeakRecord:
    """Store the better of this peak and the stored one of the same conditions, and return it.

    Each rate counts by itself: a busy machine measures too little, never too much.
    """
    earlier = find_peak(peak["conditions"])
    if earlier is not None:
        bytes_per_s = max(earlier["bytes_per_s"], peak["bytes_per_s"])
        faster = earlier if earlier["flop_per_s"] > peak["flop_per_s"] else peak
        peak = {**faster, "bytes_per_s": bytes_per_s}
    file = _file_of(peak["conditions"])
    try:
        content = json.dumps({"schema": _SCHEMA, **peak}, indent=2) + "\n"
        replace_file(file, [content.encode()])
    except OSError as error:
        raise MachineError(
            f"cannot save the peaks in {file.parent}: {error.strerror}. Make it writable, or "
            f"choose another cache folder with {CACHE_VARIABLE}."
        ) from error
    return peak


def _file_of(conditions: PeakConditions) -> Path:
    cache = cache_folder()
    if cache is None:
        raise MachineError(
            f"no folder for peaks: this user has no home. Choose one with {CACHE_VARIABLE}."
        )
    text = json.dumps(conditions, sort_keys=True)
    return cache / "peaks" / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
