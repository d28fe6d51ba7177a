"""The timeline of an asynchronous device, from its own events, without waiting for it.

A mark is placed in the device's queue of work and is reached when the device gets there. Values are
copied behind the work that computes them and read only after a later mark was reached, so the loop
never waits. The queues of CUDA and MPS follow torch's documentation and have not been run on such a
device: the tests drive the meter with a scripted queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch


class DeviceMark(Protocol):
    """A point in the device's queue of work."""

    def reached(self) -> bool:
        """Return whether the device got there, without waiting."""

    def wait(self) -> None:
        """Block until the device got there. Only for use outside the loop."""

    def seconds_until(self, later: DeviceMark) -> float:
        """Return the device's time between two marks that were both reached."""


class DeviceQueue(Protocol):
    """The queue of an asynchronous device, as the meter uses it."""

    def mark(self) -> DeviceMark:
        """Place a mark behind all work issued so far."""

    def fetch(self, values: torch.Tensor) -> Callable[[], Sequence[float]]:
        """Start copying values; call the result after a later mark was reached."""


class EventMark:
    """A torch event with timing: those of CUDA and MPS have the same methods."""

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
        """Return the driver's time between two events."""
        assert isinstance(later, EventMark)
        return float(self._event.elapsed_time(later._event)) * 1e-3


class EventQueue:
    """The queue of a device whose events are torch's: the current CUDA stream, or MPS."""

    def __init__(self, make_event: Callable[..., Any], *, pins_memory: bool) -> None:
        self._make_event, self._pins_memory = make_event, pins_memory

    def mark(self) -> DeviceMark:
        """Record an event in the queue."""
        return EventMark(self._make_event(enable_timing=True))

    def fetch(self, values: torch.Tensor) -> Callable[[], Sequence[float]]:
        """Copy to the host, asynchronously."""
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=self._pins_memory)
        host.copy_(values.detach(), non_blocking=True)
        return host.tolist


def queue_of(device: torch.device) -> DeviceQueue | None:
    """Return the device's queue, or None for a CPU, which the host's clock measures."""
    if device.type == "cuda":
        return EventQueue(torch.cuda.Event, pins_memory=True)
    # An Apple GPU shares its memory with the host.
    return EventQueue(torch.mps.Event, pins_memory=False) if device.type == "mps" else None
