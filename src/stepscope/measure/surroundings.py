"""What the machine does around a training: heat, the device's clock and use, power, throttling.

Read at most once a second: some of it is slow to tell.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepscope.hardware.device_figures import Devices
from stepscope.hardware.thermal import find_zones
from stepscope.measure.energy import Note
from stepscope.measure.throttling import Throttling

READ_EVERY_S = 1.0


class Surroundings:
    """Give the figures of telemetry that are the machine's and not a process's."""

    def __init__(self, root: Path, note: Note, power_w: Callable[[], float | None]) -> None:
        self._power_w = power_w
        self._zones = find_zones(root)
        self._devices = Devices(root)
        self._throttling = Throttling(root, note)
        self._last: tuple[float, float] | None = None  # when, and CPU time of the training then

    def read(self, time_s: float, cpu_s: float | None) -> dict[str, float | None]:
        """Return figures by column; none when it is too early for the next reading.

        `cpu_s` is what the training's processes have used so far.
        """
        last = self._last
        if last is not None and time_s - last[0] < READ_EVERY_S:
            return {}
        busy_cpus = None
        if last is not None and cpu_s is not None:
            busy_cpus = (cpu_s - last[1]) / (time_s - last[0])
        self._last = (time_s, cpu_s or 0.0)
        device = self._devices.read()
        heat_c = {zone: c for zone in self._zones if (c := zone.celsius()) is not None}
        self._throttling.look(time_s, busy_cpus, heat_c, device)
        known_c = [*heat_c.values(), device.temperature_c]
        return {
            "device_percent": device.percent,
            "device_mhz": device.mhz,
            "power_w": self._power_w(),
            "temperature_c": max((c for c in known_c if c is not None), default=None),
        }
