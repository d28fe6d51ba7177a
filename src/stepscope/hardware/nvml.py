"""NVML, the management library of NVIDIA's driver, opened once for all who ask it something."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from stepscope.errors import MachineError
from stepscope.hardware.pseudo_files import is_there

_DEVICE_FILES = ("dev/nvidiactl", "dev/nvhost-gpu", "dev/nvgpu", "proc/driver/nvidia")


class NvmlError(MachineError):
    """NVML, or a query to it, is not to be had; the text says why."""


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML knows it; `ask` calls one of its queries."""

    index: int
    handle: Any
    library: Any

    def ask(self, query: str, *arguments: Any) -> Any:
        """Return what a query gives for this GPU.

        Raises:
            NvmlError: the driver refuses it, or the library is too old to know it.
        """
        try:
            return getattr(self.library, query)(self.handle, *arguments)
        except (self.library.NVMLError, AttributeError) as error:
            raise NvmlError(f"NVML refuses {query} on GPU {self.index}: {error}") from error


def may_have_gpu(root: Path) -> bool:
    """Say whether the system shows an NVIDIA GPU, so that it is worth loading a library."""
    return any(is_there(root / file) for file in _DEVICE_FILES)


def gpus_of(library: Any) -> list[Gpu]:
    """List the GPUs that a library, once started, knows.

    Raises:
        NvmlError: it does not start, or does not count them.
    """
    try:
        library.nvmlInit()
        count = library.nvmlDeviceGetCount()
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    except library.NVMLError as error:
        raise NvmlError(f"NVML does not start: {error}") from error
    return [Gpu(index, handle, library) for index, handle in enumerate(handles)]


@cache
def _library() -> Any:
    return importlib.import_module("pynvml")


def find_gpus(root: Path, library: Callable[[], Any] = _library) -> list[Gpu]:
    """List the GPUs of this machine; none where the system shows none.

    Raises:
        NvmlError: there is one, and it cannot be asked.
    """
    if not may_have_gpu(root):
        return []
    try:
        loaded = library()
    except ImportError as error:
        raise NvmlError(
            "an NVIDIA GPU is there, and nvidia-ml-py to ask it is not: "
            "pip install 'stepscope[energy]'"
        ) from error
    return gpus_of(loaded)
