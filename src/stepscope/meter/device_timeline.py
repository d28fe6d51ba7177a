"""The second timeline: what an asynchronous device did, by its own events, without waiting for it.

A mark is set into the device's queue of work and is reached when the device gets there. Numbers
are copied over behind the work that makes them and read only once a later mark was reached, so
nothing in the loop waits. The queues of CUDA and MPS were written after torch's documentation and
have not been run on such a device: the tests drive the meter with a scripted queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch


class DeviceMark(Protocol):
    """A point in the device's queue of work."""

    def reached(self) -> bool:
        """Say whether the device got there, without waiting."""

    def wait(self) -> None:
        """Block until the device got there. Only outside the loop."""

    def seconds_until(self, later: DeviceMark) -> float:
        """Return the device's time between two marks that were both reached."""


class DeviceQueue(Protocol):
    """What the meter needs of an asynchronous device."""

    def mark(self) -> DeviceMark:
        """Put a mark behind all work issued so far."""

    def fetch(self, values: torch.Tensor) -> Callable[[], Sequence[float]]:
        """Begin to copy numbers over; the result may be called once a later mark was reached."""


class EventMark:
    """An event of torch's, with timing: CUDA's and MPS's offer the same calls."""

    def __init__(self, event: Any) -> None:
        self._event = event
        self._event.record()

    def reached(self) -> bool:
        """Query the event."""
        return bool(self._event.query())

    def wait(self) -> None:
        """Synchronise with the event."""
        self._event.synchronize()

    def seconds_until(self, later: DeviceMark) -> float:
        """Ask the driver for the time between two events."""
        assert isinstance(later, EventMark)
        return float(self._event.elapsed_time(later._event)) * 1e-3


class CudaQueue:
    """The current CUDA stream."""

    def mark(self) -> DeviceMark:
        """Record an event on the stream."""
        return EventMark(torch.cuda.Event(enable_timing=True))

    def fetch(self, values: torch.Tensor) -> Callable[[], Sequence[float]]:
        """Copy to pinned memory, asynchronously."""
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values.detach(), non_blocking=True)
        return host.tolist


class MpsQueue:
    """The queue of an Apple GPU, which shares its memory with the host."""

    def mark(self) -> DeviceMark:
        """Record an event in the queue."""
        return EventMark(torch.mps.Event(enable_timing=True))

    def fetch(self, values: torch.Tensor) -> Callable[[], Sequence[float]]:
        """Copy to the host, asynchronously."""
        host = values.detach().to("cpu", non_blocking=True)
        return host.tolist


def queue_of(device: torch.device) -> DeviceQueue | None:
    """Return the device's queue, or None where the host's clock tells everything (a CPU)."""
    queues: dict[str, Callable[[], DeviceQueue]] = {"cuda": CudaQueue, "mps": MpsQueue}
    return queues[device.type]() if device.type in queues else None
