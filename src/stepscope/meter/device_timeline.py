"""The timeline of an asynchronous device, from its own events, without waiting for it.

A mark is reached when the device gets there. Values are copied behind the work that computes them
and read only after a later mark. The queues of CUDA and MPS have not been run on such a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class DeviceMark:
    """A point in the device's queue of work: a torch event with timing, of CUDA or MPS."""

    def __init__(self, event: Any) -> None:
        self._event = event
        self._event.record()

    def reached(self) -> bool:
        """Return whether the device got there, without waiting."""
        return bool(self._event.query())

    def wait(self) -> None:
        """Block until the device got there. Only for use outside the loop."""
        self._event.synchronize()

    def seconds_until(self, later: DeviceMark) -> float:
        """Return the device's time between two marks that were both reached."""
        return float(self._event.elapsed_time(later._event)) * 1e-3


class DeviceQueue:
    """The queue of a device whose events are torch's: the current CUDA stream, or MPS."""

    def __init__(self, make_event: Callable[..., Any], *, pins_memory: bool) -> None:
        self._make_event, self._pins_memory = make_event, pins_memory

    def mark(self) -> DeviceMark:
        """Place a mark behind all work issued so far."""
        return DeviceMark(self._make_event(enable_timing=True))

    def fetch(self, values: torch.Tensor) -> Callable[[], Sequence[float]]:
        """Start copying values; call the result after a later mark was reached."""
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=self._pins_memory)
        host.copy_(values.detach(), non_blocking=True)
        return host.tolist


def queue_of(device: torch.device) -> DeviceQueue | None:
    """Return the device's queue, or None for a CPU, which the host's clock measures."""
    if device.type == "cuda":
        return DeviceQueue(torch.cuda.Event, pins_memory=True)
    # An Apple GPU shares its memory with the host.
    return DeviceQueue(torch.mps.Event, pins_memory=False) if device.type == "mps" else None
