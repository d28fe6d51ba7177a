"""What an accelerator does right now: its use, its clock, its heat, and what holds it back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.hardware.frequency import gpus_on_chip
from stepscope.hardware.nvml import Gpu, NvmlError, find_gpus
from stepscope.hardware.pseudo_files import read_integer

# Of NVML, as its header numbers them.
_CLOCK_SM = 1
_TEMPERATURE_OF_GPU = 0
_HELD_BACK = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
# Of a GPU on the chip of a board.
_LOADS = ("device/load", "load")
_LOADS_ELSEWHERE = ("sys/devices/gpu.0/load", "sys/devices/platform/gpu.0/load")


@dataclass(frozen=True)
class DeviceFigures:
    """One reading of the busiest device; None is what it does not tell."""

    percent: float | None = None
    mhz: float | None = None
    temperature_c: float | None = None
    held_back_by: tuple[str, ...] | None = None
    index: int | None = None  # by NVML's count; None for a GPU on the chip, of which there is one


class Devices:
    """The accelerators of a machine, found once and read when asked."""

    def __init__(self, root: Path) -> None:
        try:
            self._gpus = find_gpus(root)
        except NvmlError:  # whoever asks for energy is told; here it is one empty column more
            self._gpus = []
        self._on_chip = next(iter(gpus_on_chip(root)), None)
        self._loads = [root / name for name in _LOADS_ELSEWHERE]
        if self._on_chip is not None:
            self._loads += [self._on_chip / name for name in _LOADS]

    def read(self) -> DeviceFigures:
        """Read the busiest GPU; one on the chip of a board where no other is known."""
        if self._gpus:
            return max(map(_of_gpu, self._gpus), key=lambda each: each.percent or 0.0)
        if self._on_chip is None:
            return DeviceFigures()
        hertz = read_integer(self._on_chip / "cur_freq").value
        permille = (read_integer(file).value for file in self._loads)
        load = next((each for each in permille if each is not None), None)
        return DeviceFigures(
            None if load is None else load / 10, None if hertz is None else hertz / 1e6
        )


def _of_gpu(gpu: Gpu) -> DeviceFigures:
    reasons = _asked(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # the name that it had in older drivers
        reasons = _asked(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons")
    held = None
    if reasons is not None:
        held = tuple(name for bit, name in _HELD_BACK.items() if int(reasons) & bit)
    return DeviceFigures(
        _asked(gpu, "nvmlDeviceGetUtilizationRates"),
        _asked(gpu, "nvmlDeviceGetClockInfo", _CLOCK_SM),
        _asked(gpu, "nvmlDeviceGetTemperature", _TEMPERATURE_OF_GPU),
        held,
        gpu.index,
    )


def _asked(gpu: Gpu, query: str, *arguments: int) -> float | None:
    try:
        answer = gpu.ask(query, *arguments)
    except NvmlError:  # an Orin's refuses most of them
        return None
    return float(getattr(answer, "gpu", answer))
