"""The timeline of a CUDA device, from its own events, without waiting for it.

A mark is an event in the stream that is current for the device when the mark is placed. Marks are
read in the order in which they were placed, so that a mark that was reached has all earlier ones
behind it, on whichever stream. Values are copied behind the work that computes them and read after
a later mark was reached.

A queue never raises into the code that it measures. What fails switches it off; `trouble` is the
reason, and marks that were not reached by then stay unknown. While a stream is being captured into
a CUDA graph it does nothing. A forked process may not even destroy a CUDA object, so a queue keeps
all that it makes, and a fork makes that immortal in the child.

The code follows torch's sources and is tested with a fake of `torch.cuda`; it has not been run on a
real device. An Apple GPU has no timeline: reading torch's events of MPS can deadlock.
"""

from __future__ import annotations

import ctypes
import os
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

_UNKNOWN_S = float("nan")

# More open marks than this are not placed. The device's own queue holds 1,024 launches.
_MOST_OPEN = 4096
_SLOTS_AT_ONCE = 256

NO_TIMELINE = {
    "mps": "an Apple GPU has no timeline here, because reading its events can deadlock",
    "cpu": "the device is not asynchronous: its times are the host's",
}


def why_no_timeline(kind: str) -> str:
    """Return why a kind of device other than CUDA has no timeline."""
    reason = NO_TIMELINE.get(kind, f"a device of the kind {kind} has no timeline here")
    return reason if kind == "cpu" else f"{reason}: phases are the host's time to issue work"


class DeviceMark:
    """A point in the device's work. `at_s` is its time once it was read, NaN if it is lost."""

    __slots__ = ("_queue", "at_s", "event")

    def __init__(self, queue: DeviceQueue, event: Any) -> None:
        self._queue, self.event = queue, event
        self.at_s: float | None = None

    def reached(self) -> bool:
        """Return whether the device got there, and to all marks before, without waiting."""
        if self.at_s is None:
            self._queue.read()
        return self.at_s is not None

    def wait(self) -> None:
        """Block until the device got there. Only for use outside the loop."""
        while self.at_s is None:
            self._queue.wait_for_one()

    def seconds_until(self, later: DeviceMark) -> float:
        """Return the device's time between two marks that were both reached; NaN if unknown."""
        assert self.at_s is not None, "both marks were reached"
        assert later.at_s is not None, "both marks were reached"
        return later.at_s - self.at_s


class DeviceQueue:
    """The work of one CUDA device, on all of its streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.trouble: str | None = None
        self.no_values: str | None = None  # why no value is fetched any more
        self.captured = False  # whether a stream was being captured when a mark was due
        self._open: deque[DeviceMark] = deque()
        self._last: DeviceMark | None = None
        self._free: list[Any] = []
        self._slots: defaultdict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        self._kept: list[Any] = []  # every event and all pinned memory
        _QUEUES.append(self)

    def mark(self) -> DeviceMark | None:
        """Place a mark behind all work issued so far; None while that is not possible."""
        if self._must_not():
            return None
        try:
            if len(self._open) >= _MOST_OPEN:
                self.read()
                if len(self._open) >= _MOST_OPEN or self.trouble is not None:
                    return None
            if self._free:
                event = self._free.pop()
            else:
                event = torch.cuda.Event(enable_timing=True)
                self._kept.append(event)
            event.record(torch.cuda.current_stream(self.device))
        except Exception as error:
            self.switch_off(error)
            return None
        placed = DeviceMark(self, event)
        self._open.append(placed)
        return placed

    def fetch(self, value: torch.Tensor) -> Callable[[], float | None] | None:
        """Start copying one value; call the result after a later mark was reached.

        Return None where that is not possible.
        """
        if self.no_values is not None or self._must_not():
            return None
        try:
            if self.device.index is not None and value.device != self.device:
                self.no_values = f"it is on {value.device}, and the marks are on {self.device}"
                return None
            slots = self._slots[value.dtype]
            if not slots:
                # The memory belongs to a device with a context: not necessarily the current one.
                with torch.cuda.device(self.device):
                    made = torch.empty(_SLOTS_AT_ONCE, dtype=value.dtype, pin_memory=True)
                self._kept.append(made)
                slots += made.split(1)
            slot = slots.pop()
            slot.copy_(value.detach().reshape(1), non_blocking=True)
        except Exception as error:
            self.no_values = f"a value could not be copied: {type(error).__name__}: {error}"
            return None
        return partial(self._read_slot, slot)

    def _read_slot(self, slot: torch.Tensor) -> float | None:
        if self.trouble is not None:
            return None  # it may not have been written
        value = slot.item()
        self._slots[slot.dtype].append(slot)
        return value

    def read(self) -> None:
        """Read the marks that the device has reached, in their order. Never waits."""
        try:
            while self._open and not self._must_not() and self._open[0].event.query():
                self._read_first()
        except Exception as error:
            self.switch_off(error)

    def wait_for_one(self) -> None:
        """Block until the device gets to the first open mark."""
        if self._must_not():
            self.switch_off(RuntimeError("the device was waited for during a capture"))
            return
        try:
            self._open[0].event.synchronize()
            self._read_first()
        except Exception as error:
            self.switch_off(error)

    def _read_first(self) -> None:
        # Times are added up from mark to mark: torch has 32 bits for the time between two events.
        mark, last = self._open[0], self._last
        mark.at_s = 0.0
        if last is not None:
            assert last.at_s is not None, "the last mark was read"
            mark.at_s = last.at_s + float(last.event.elapsed_time(mark.event)) * 1e-3
            self._free.append(last.event)
            last.event = None
        self._last = mark
        self._open.popleft()

    def _must_not(self) -> bool:
        """Return whether the device must be left alone now."""
        if self.trouble is not None:
            return True
        try:
            captures = bool(torch.cuda.is_current_stream_capturing())
        except Exception as error:
            self.switch_off(error)
            return True
        self.captured = self.captured or captures
        return captures or is_capturing()

    def switch_off(self, error: Exception) -> None:
        """Leave the device alone from now on, because of an error."""
        self.trouble = f"the device's events failed: {type(error).__name__}: {error}"
        self._lose_open()

    def _lose_open(self) -> None:
        for mark in self._open:
            mark.at_s = _UNKNOWN_S
        self._open.clear()


_QUEUES: list[DeviceQueue] = []


def keep_forever(thing: object) -> None:
    """Let no destructor of an object run in this process, not even when it ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _leave_to_the_parent() -> None:
    """In a forked process: keep every CUDA object of the parent, and use none."""
    for queue in _QUEUES:
        keep_forever(queue)
        queue.trouble = "this process was forked from the one that uses the device"
        queue._lose_open()


os.register_at_fork(after_in_child=_leave_to_the_parent)


# The graphs that are being captured, by id: on another stream than the current one it is seen here.
_captures: set[int] = set()


def is_capturing() -> bool:
    """Return whether a CUDA graph is being captured, as far as it was announced."""
    return bool(_captures)


def capture_begins(graph: object) -> None:
    """Announce that a graph is being captured, in whichever stream."""
    _captures.add(id(graph))


def capture_ends(graph: object) -> None:
    """Take an announcement back."""
    _captures.discard(id(graph))


def queue_of(device: torch.device) -> DeviceQueue | None:
    """Return the device's queue, or None for a CPU and for devices without a timeline."""
    if device.type != "cuda":
        return None
    known = (queue for queue in _QUEUES if queue.device == device and queue.trouble is None)
    return next(known, None) or DeviceQueue(device)
