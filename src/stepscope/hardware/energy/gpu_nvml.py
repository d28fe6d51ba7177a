"""NVIDIA GPUs: an energy counter since Volta, the current power before that.

On an Orin the library starts, lists the GPU and refuses every such query: both sensors are found
and fail at the first reading, so that the next family is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from stepscope.hardware.energy.sensor import Kind, Sensor
from stepscope.hardware.gpu import Gpu, gpus_of_run

_MILLI = 1e-3
_QUERIES: tuple[tuple[str, Kind, str], ...] = (
    ("energy", "counter", "nvmlDeviceGetTotalEnergyConsumption"),
    ("power", "power", "nvmlDeviceGetPowerUsage"),
)


def find(root: Path, gpus: Callable[[Path], list[Gpu]] = gpus_of_run) -> list[Sensor]:
    """List counter and power of every GPU that the run may use, the counter first."""
    return [
        Sensor(f"nvml {name} {gpu.index}", f"gpu{gpu.index}", kind, partial(_ask, gpu, query))
        for gpu in gpus(root)
        for name, kind, query in _QUERIES
    ]


def _ask(gpu: Gpu, query: str) -> float:
    return float(gpu.ask(query)) * _MILLI
