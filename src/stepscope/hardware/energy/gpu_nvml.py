"""NVIDIA GPUs: an energy counter since Volta, the current power before that.

On an Orin the library starts, lists the GPU and refuses every such query: both sensors are found
and fail at the first reading, so that the next family is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from stepscope.hardware.energy.sensor import Sensor, SensorError
from stepscope.hardware.gpu import Gpu, NvmlError, find_gpus

_MILLI = 1e-3


def find(root: Path, gpus: Callable[[Path], list[Gpu]] = find_gpus) -> list[Sensor]:
    """List counter and power of every GPU, the counter first."""
    try:
        found = gpus(root)
    except NvmlError as error:
        raise SensorError(str(error)) from error
    return [
        sensor
        for gpu in found
        for sensor in (
            Sensor(
                f"nvml energy {gpu.index}",
                f"gpu{gpu.index}",
                "counter",
                partial(_ask, gpu, "nvmlDeviceGetTotalEnergyConsumption"),
            ),
            Sensor(
                f"nvml power {gpu.index}",
                f"gpu{gpu.index}",
                "power",
                partial(_ask, gpu, "nvmlDeviceGetPowerUsage"),
            ),
        )
    ]


def _ask(gpu: Gpu, query: str) -> float:
    try:
        return float(gpu.ask(query)) * _MILLI
    except NvmlError as error:
        raise SensorError(str(error)) from error
