"""The memory of a device: what it has, what torch's allocator reserved of it, what the driver took.

The pool `device` of a run is what the allocator reserved plus the context: what driver and
libraries hold for this process. Where host and device share their memory (a Jetson, an Apple GPU),
there is one pool, `unified`; what a device holds there is taken to be no part of the process's
resident size. The classes for CUDA and MPS were written after torch's documentation and have not
been run on such a device: the tests drive all that uses them with a scripted one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from stepscope.hardware import gpu, host, process


@dataclass(frozen=True)
class Context:
    """What the driver and its libraries hold, how that was found, and what it rests on."""

    bytes: int
    how: Literal["counted", "measured", "calibrated"]
    note: str


@dataclass(frozen=True)
class HostMemory:
    """The host's memory at a moment: what is available, and what this process holds."""

    available_bytes: int
    resident_bytes: int


class DeviceMemory(Protocol):
    """What a run needs to know of its device's memory. Only the first two may wait for it."""

    def context(self) -> Context:
        """Return what driver and libraries hold now; it grows with the operations used."""

    def begin_anew(self) -> None:
        """Give back what the allocator merely keeps, and begin a new peak."""

    def reserved_bytes(self) -> int:
        """Return what the allocator holds now, in use or kept for later."""

    def peak_reserved_bytes(self) -> int:
        """Return the most that it held."""

    def limit_bytes(self) -> int:
        """Return the most that this process can have of the device, the context included."""

    @property
    def unified(self) -> bool:
        """Whether it is the host's memory too."""


def host_memory() -> HostMemory:
    """Look at the host's memory, before a device that may share it is used for the first time."""
    return HostMemory(host.available_bytes(), process.own_resident_bytes())


@dataclass(frozen=True)
class CudaMemory:
    """The memory of a CUDA device, `before` it was first used."""

    device: torch.device
    before: HostMemory

    @property
    def unified(self) -> bool:
        """An integrated GPU has no memory of its own."""
        return bool(self._properties.is_integrated)

    def context(self) -> Context:
        """Ask the driver for this process's part; where it does not tell, see what is in use."""
        reserved_bytes = self.reserved_bytes()
        if self.unified:
            now = host_memory()
            gone_bytes = self.before.available_bytes - now.available_bytes
            grown_bytes = now.resident_bytes - self.before.resident_bytes
            taken_bytes = max(0, gone_bytes - grown_bytes - reserved_bytes)
            note = "what the machine has less since the device was first used, tensors apart"
            return Context(taken_bytes, "calibrated", note)
        uuid = str(getattr(self._properties, "uuid", ""))  # torch 2.4 does not tell it
        own_bytes = gpu.used_bytes(uuid, os.getpid())
        if own_bytes is not None:
            note = "driver and libraries, by the driver's own account"
            return Context(max(0, own_bytes - reserved_bytes), "measured", note)
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.device)
        note = "in use on the device beyond torch's part, that of other programs included"
        return Context(max(0, total_bytes - free_bytes - reserved_bytes), "measured", note)

    def begin_anew(self) -> None:
        """Empty the cache, which waits for the device."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def reserved_bytes(self) -> int:
        """Read the allocator's own count, which is on the host."""
        return torch.cuda.memory_reserved(self.device)

    def peak_reserved_bytes(self) -> int:
        """Read the allocator's own high-water mark."""
        return torch.cuda.max_memory_reserved(self.device)

    def limit_bytes(self) -> int:
        """Return what is free and what is ours; memory that host and device share, whole."""
        if self.unified:
            return int(self._properties.total_memory)
        free_bytes, _ = torch.cuda.mem_get_info(self.device)
        return free_bytes + self.reserved_bytes() + self.context().bytes

    @property
    def _properties(self) -> Any:
        return torch.cuda.get_device_properties(self.device)


@dataclass
class MpsMemory:
    """The memory of an Apple GPU, which is the host's. torch keeps no peak: the largest seen is."""

    unified: bool = True
    _peak_bytes: int = 0

    def context(self) -> Context:
        """Take it as a part of what the driver says it has allocated."""
        return Context(0, "counted", "in what the driver allocated for tensors and kernels")

    def begin_anew(self) -> None:
        """Empty the cache."""
        torch.mps.empty_cache()
        self._peak_bytes = 0

    def reserved_bytes(self) -> int:
        """Ask Metal's driver what it has allocated for this process."""
        reserved_bytes = torch.mps.driver_allocated_memory()
        self._peak_bytes = max(self._peak_bytes, reserved_bytes)
        return reserved_bytes

    def peak_reserved_bytes(self) -> int:
        """Return the most that was seen: the allocator keeps what it has once reserved."""
        self.reserved_bytes()
        return self._peak_bytes

    def limit_bytes(self) -> int:
        """Return how much Metal recommends to use at most; where torch cannot ask it, all."""
        recommended = getattr(torch.mps, "recommended_max_memory", None)  # not in torch 2.4
        return host.memory_bytes() if recommended is None else int(recommended())


def device_memory_of(device: torch.device, before: HostMemory) -> DeviceMemory | None:
    """Return the memory of a device; None for the CPU, whose memory is the host's."""
    known: dict[str, Callable[[], DeviceMemory]] = {
        "cuda": lambda: CudaMemory(device, before),
        "mps": MpsMemory,
    }
    return known[device.type]() if device.type in known else None


@dataclass
class DevicePool:
    """A device's pool while a run goes on: the context as last found, and what is reserved.

    Made before there are loader workers: where the context is what the machine has less, they
    would count as context.
    """

    memory: DeviceMemory
    _context: Context = field(init=False)

    def __post_init__(self) -> None:
        self._context = self.memory.context()

    def now(self) -> dict[str, Any]:
        """Return the message that tells what is held now; waits for nothing."""
        held_bytes = self._context.bytes + self.memory.reserved_bytes()
        return {"type": "device_memory", "bytes": held_bytes, "unified": self.memory.unified}

    def at_end(self) -> dict[str, int]:
        """Return what a run held at most, and the context, which may have grown meanwhile."""
        if self._context.how == "measured":  # else it is a difference, and workers are alive now
            # A device that has failed answers nothing any more; what was found before holds.
            with contextlib.suppress(RuntimeError):
                self._context = max(self._context, self.memory.context(), key=lambda c: c.bytes)
        return {
            "peak_bytes": self._context.bytes + self.memory.peak_reserved_bytes(),
            "context_bytes": self._context.bytes,
        }
