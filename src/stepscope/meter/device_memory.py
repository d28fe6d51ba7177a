"""Memory of a device: its size, the allocator's reserved part, and the driver's part.

The pool `device` of a run is what the allocator reserved plus the context. Where host and device
share their memory there is one pool, `unified`. The classes for CUDA and MPS follow torch's
documentation and have not been run on such a device.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from stepscope.hardware import gpu, host, process_memory
from stepscope.records.types import DeviceMemoryMessage, DeviceMemoryPeak


@dataclass(frozen=True)
class Context:
    """The memory of the driver and its libraries, how it was determined, and a note on it."""

    bytes: int
    how: Literal["counted", "measured", "calibrated"]
    note: str


@dataclass(frozen=True)
class HostMemory:
    """The host's memory at a moment: available, and resident in this process."""

    available_bytes: int
    resident_bytes: int


def host_memory() -> HostMemory:
    """Read the host's memory. Call it before the first use of a device that may share it."""
    return HostMemory(host.available_bytes(), process_memory.own_resident_bytes())


@dataclass(frozen=True)
class CudaMemory:
    """The memory of a CUDA device. `before` is the host's memory before its first use."""

    device: torch.device
    before: HostMemory

    @property
    def unified(self) -> bool:
        """Whether the GPU is integrated and has no separate memory."""
        return bool(self._properties.is_integrated)

    def context(self) -> Context:
        """Return the driver's figure for this process or, without one, all use of the device."""
        reserved_bytes = self.reserved_bytes()
        if self.unified:
            now = host_memory()
            gone_bytes = self.before.available_bytes - now.available_bytes
            grown_bytes = now.resident_bytes - self.before.resident_bytes
            taken_bytes = max(0, gone_bytes - grown_bytes - reserved_bytes)
            note = (
                "the decrease of available memory since the device was first used, without tensors"
            )
            return Context(taken_bytes, "calibrated", note)
        uuid = str(getattr(self._properties, "uuid", ""))  # missing in torch 2.4
        own_bytes = gpu.used_bytes(uuid, os.getpid())
        if own_bytes is not None:
            note = "driver and libraries, as reported by the driver"
            return Context(max(0, own_bytes - reserved_bytes), "measured", note)
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.device)
        note = (
            "used on the device beyond torch's part, including other programs: the driver does "
            "not list this process, as in some containers, on WSL2 and on MIG"
        )
        return Context(max(0, total_bytes - free_bytes - reserved_bytes), "measured", note)

    def reset(self) -> None:
        """Release what the allocator only caches, which waits, and reset the peak."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def reserved_bytes(self) -> int:
        """Return what the allocator holds now, in use or cached; its count is on the host."""
        return torch.cuda.memory_reserved(self.device)

    def peak_reserved_bytes(self) -> int:
        """Return the allocator's high-water mark."""
        return torch.cuda.max_memory_reserved(self.device)

    def limit_bytes(self) -> int:
        """Return the free memory plus this process's part; all of it if it is unified."""
        if self.unified:
            return int(self._properties.total_memory)
        free_bytes, _ = torch.cuda.mem_get_info(self.device)
        return free_bytes + self.reserved_bytes() + self.context().bytes

    @property
    def _properties(self) -> Any:
        return torch.cuda.get_device_properties(self.device)


@dataclass
class MpsMemory:
    """The memory of an Apple GPU, which is the host's. The peak is the largest value read."""

    unified: bool = True
    _peak_bytes: int = 0

    def context(self) -> Context:
        """Return 0: the context is part of what the driver reports as allocated."""
        return Context(0, "counted", "included in the driver's allocation for tensors and kernels")

    def reset(self) -> None:
        """Empty the cache and reset the peak."""
        torch.mps.empty_cache()
        self._peak_bytes = 0

    def reserved_bytes(self) -> int:
        """Return what Metal's driver has allocated for this process."""
        reserved_bytes = torch.mps.driver_allocated_memory()
        self._peak_bytes = max(self._peak_bytes, reserved_bytes)
        return reserved_bytes

    def peak_reserved_bytes(self) -> int:
        """Return the largest value read: the allocator keeps what it has reserved."""
        self.reserved_bytes()
        return self._peak_bytes

    def limit_bytes(self) -> int:
        """Return Metal's recommended maximum, or all memory if torch cannot query it."""
        recommended = getattr(torch.mps, "recommended_max_memory", None)  # not in torch 2.4
        return host.memory_bytes() if recommended is None else int(recommended())


# Of these methods, only `context` and `reset` may wait for the device.
DeviceMemory = CudaMemory | MpsMemory


def device_memory_of(device: torch.device, before: HostMemory) -> DeviceMemory | None:
    """Return the memory of a device; None for the CPU, whose memory is the host's."""
    if device.type == "cuda":
        return CudaMemory(device, before)
    return MpsMemory() if device.type == "mps" else None


@dataclass
class DevicePool:
    """A device's pool during a run.

    Create it before loader workers start: where the context is a difference in available memory,
    they would count as context.
    """

    memory: DeviceMemory
    _context: Context = field(init=False)
    _peak_bytes: int = 0  # the largest peak read: a script may reset the allocator's

    def __post_init__(self) -> None:
        self._context = self.memory.context()

    def now(self) -> DeviceMemoryMessage:
        """Return the message with the current size of the pool. Never waits."""
        held_bytes = self._context.bytes + self.memory.reserved_bytes()
        self._peak_bytes = max(self._peak_bytes, self.memory.peak_reserved_bytes())
        return {"type": "device_memory", "bytes": held_bytes, "unified": self.memory.unified}

    def at_end(self) -> DeviceMemoryPeak:
        """Return the peak of the run, and the context, which may have grown."""
        if self._context.how == "measured":  # else it is a difference, and would include workers
            # A failed device does not answer; the earlier value holds.
            with contextlib.suppress(RuntimeError):
                self._context = max(self._context, self.memory.context(), key=lambda c: c.bytes)
        peak_bytes = max(self._peak_bytes, self.memory.peak_reserved_bytes())
        return {
            "peak_bytes": self._context.bytes + peak_bytes,
            "context_bytes": self._context.bytes,
        }
