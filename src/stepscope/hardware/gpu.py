"""GPUs: NVML, a process's GPU memory, and current readings of the busiest device of a run.

NVML is the management library of NVIDIA's driver; it knows nothing of CUDA_VISIBLE_DEVICES. The GPU
on a board's chip is read from sysfs.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from stepscope.errors import MachineError
from stepscope.hardware.cpu_clock import gpus_on_chip
from stepscope.hardware.procfs import is_there, read_integer, system_root

_DEVICE_FILES = (
    *("dev/nvidiactl", "dev/nvhost-gpu", "dev/nvgpu", "proc/driver/nvidia"),
    "dev/dxg",  # WSL2, whose NVML is that of Windows' driver
)


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML knows it; `ask` calls one of its queries."""

    index: int
    handle: Any
    library: Any

    def ask(self, query: str, *arguments: Any) -> Any:
        """Return the result of a query for this GPU; raise MachineError if NVML refuses it."""
        try:
            return getattr(self.library, query)(self.handle, *arguments)
        except (self.library.NVMLError, AttributeError) as error:
            raise MachineError(f"NVML refuses {query} on GPU {self.index}: {error}") from error


def may_have_gpu(root: Path) -> bool:
    """Return whether the system shows an NVIDIA GPU, so that loading NVML is worthwhile."""
    return any(is_there(root / file) for file in _DEVICE_FILES)


def gpus_of(library: Any) -> list[Gpu]:
    """List the GPUs that a library, once started, knows; raise MachineError if it fails."""
    try:
        library.nvmlInit()
        count = library.nvmlDeviceGetCount()
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except library.NVMLError as error:
        raise MachineError(f"NVML does not start: {error}") from error
    return [Gpu(index, handle, library) for index, handle in enumerate(handles)]


@cache
def _library() -> Any:
    return importlib.import_module("pynvml")


def find_gpus(root: Path, library: Callable[[], Any] = _library) -> list[Gpu]:
    """List the GPUs of this machine; none where the system shows none."""
    if not may_have_gpu(root):
        return []
    try:
        loaded = library()
    except ImportError as error:
        raise MachineError(
            "an NVIDIA GPU needs nvidia-ml-py, which is not installed: "
            "pip install 'stepscope[energy]'"
        ) from error
    return gpus_of(loaded)


def gpus_of_run(root: Path) -> list[Gpu]:
    """List the GPUs that a run may use, by its CUDA_VISIBLE_DEVICES; else those of the machine."""
    return visible(
        find_gpus(root),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        by_bus=os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID",
    )


def visible(gpus: list[Gpu], chosen: str | None, *, by_bus: bool) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names: by number, UUID, or a MIG instance's.

    CUDA numbers the fastest GPU first unless it goes `by_bus`, as NVML does: numbers say nothing
    where the GPUs differ. All are returned if a name is unknown.
    """
    if chosen is None:
        return gpus
    found: list[Gpu] = []
    for name in (each.strip() for each in chosen.split(",")):
        if name == "-1" or not name:  # CUDA ignores what follows
            break
        if name.isdecimal():
            alike = len({_name_of(gpu) for gpu in gpus}) <= 1
            if not (by_bus or alike) or int(name) >= len(gpus):
                return gpus
            found.append(gpus[int(name)])
        else:
            named = [gpu for gpu in gpus if _is_named(gpu, name)]
            if len(named) != 1:
                return gpus
            found += named
    return found


def _name_of(gpu: Gpu) -> str | None:
    try:
        return str(gpu.ask("nvmlDeviceGetName"))
    except MachineError:
        return None


def _is_named(gpu: Gpu, name: str) -> bool:
    """Return whether a UUID, or its beginning, is that of a GPU or of one of its MIG instances."""
    try:
        uuid = str(gpu.ask("nvmlDeviceGetUUID"))
    except MachineError:
        return False
    if name.startswith("MIG-GPU-"):  # of older drivers: with the numbers of the instance
        return uuid == name.removeprefix("MIG-").partition("/")[0]
    if name.startswith("MIG-"):
        return name in _uuids_of_instances(gpu)
    return uuid.startswith(name)


def _uuids_of_instances(gpu: Gpu) -> Iterator[str]:
    try:
        for number in range(gpu.ask("nvmlDeviceGetMaxMigDeviceCount")):
            handle = gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", number)
            yield str(replace(gpu, handle=handle).ask("nvmlDeviceGetUUID"))
    except MachineError:  # no such instance: they are numbered in a row
        return


def used_bytes(device_uuid: str, process_id: int, gpus: Sequence[Gpu] | None = None) -> int | None:
    """Return the memory that a process holds on a device.

    None if the driver does not report it: it cannot be queried, keeps no such account, or knows the
    process by another number, as it does from inside some containers.
    """
    wanted = device_uuid.removeprefix("GPU-")
    try:
        for gpu in find_gpus(system_root()) if gpus is None else gpus:
            # The driver's UUID has the prefix `GPU-`, torch's does not.
            if gpu.ask("nvmlDeviceGetUUID").removeprefix("GPU-") == wanted:
                for each in gpu.ask("nvmlDeviceGetComputeRunningProcesses"):
                    if each.pid == process_id and each.usedGpuMemory is not None:
                        return int(each.usedGpuMemory)
    except MachineError:
        return None
    return None


# Constants of NVML's header.
_CLOCK_SM = 1
_TEMPERATURE_OF_GPU = 0
POWER_CAP = "power cap"
_HELD_BACK = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
# Load files of a GPU on a board's chip.
_LOADS = ("device/load", "load")
_LOADS_ELSEWHERE = ("sys/devices/gpu.0/load", "sys/devices/platform/gpu.0/load")


@dataclass(frozen=True)
class DeviceFigures:
    """One reading of the busiest device; None where it is unknown."""

    percent: float | None = None
    mhz: float | None = None
    temperature_c: float | None = None
    held_back_by: tuple[str, ...] | None = None
    index: int | None = None  # NVML's index; None for an on-chip GPU


class Devices:
    """The accelerators that a run may use, found once and read on request."""

    def __init__(self, root: Path) -> None:
        try:
            self._gpus = gpus_of_run(root)
        except MachineError:  # the energy sensors report the reason
            self._gpus = []
        self._on_chip = next(iter(gpus_on_chip(root)), None)
        self._loads = [root / name for name in _LOADS_ELSEWHERE]
        if self._on_chip is not None:
            self._loads += [self._on_chip / name for name in _LOADS]

    def read(self) -> DeviceFigures:
        """Read the busiest GPU, or else the one on a board's chip."""
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
    if reasons is None:  # the name in older drivers
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
    except MachineError:  # an Orin refuses most queries
        return None
    return float(getattr(answer, "gpu", answer))
