"""A clock and a device whose every move is written down beforehand."""

from __future__ import annotations

from collections.abc import Callable

import torch

MS = 1_000_000


class ScriptedClock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    @property
    def now_ms(self) -> float:
        return self.now / MS

    def pass_ms(self, milliseconds: float) -> None:
        self.now += round(milliseconds * MS)


class ScriptedMark:
    def __init__(self, device: ScriptedDevice, at_ms: float) -> None:
        self.device, self.at_ms = device, at_ms

    def reached(self) -> bool:
        return self.device.now_ms >= self.at_ms

    def wait(self) -> None:
        self.device.now_ms = max(self.device.now_ms, self.at_ms)

    def seconds_until(self, later: ScriptedMark) -> float:
        return (later.at_ms - self.at_ms) / 1000


class ScriptedDevice:
    """A device that takes its own time for the work that is put into its queue."""

    def __init__(self, clock: ScriptedClock) -> None:
        self.clock = clock
        self.now_ms = 0.0
        self.queue_ends_ms = 0.0

    def work(self, milliseconds: float) -> None:
        self.queue_ends_ms = max(self.queue_ends_ms, self.clock.now_ms) + milliseconds

    def mark(self) -> ScriptedMark:
        self.queue_ends_ms = max(self.queue_ends_ms, self.clock.now_ms)
        return ScriptedMark(self, self.queue_ends_ms)

    def fetch(self, values: torch.Tensor) -> Callable[[], list[float]]:
        return lambda: values.tolist()
