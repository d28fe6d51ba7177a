"""Watch the energy of what is supervised: an idle second before, readings until its end.

What is found and what fails is noted in `events.jsonl`, so that the joules of a run that was killed
can be told as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from stepscope.hardware.energy import Sensors, find_sensors
from stepscope.measure.energy import READ_EVERY_S, EnergyReader, read_idle, refresh_periods
from stepscope.records import schema
from stepscope.records.csvlog import CsvLog
from stepscope.records.folder import RunFolder


class EnergyWatch:
    """The sensors of this machine, read from the start of a charge to its end."""

    def __init__(self, folder: RunFolder, root: Path, *, asked: bool) -> None:
        """Find the sensors, unless nobody asked for them: then none is even looked for."""
        self._folder = folder
        self._sensors = find_sensors(root) if asked else Sensors((), {})
        self._asked = asked
        self._log = CsvLog(folder.path / schema.ENERGY)
        self._reader = EnergyReader(self._sensors, self._log, folder.add_event)
        self.every_s = READ_EVERY_S if self._sensors.working else float("inf")

    def begin(self, time_s: float, stopped: Callable[[], bool]) -> None:
        """Note what was found and how much the machine takes while nothing of ours runs."""
        if not self._asked:
            return
        self._folder.add_event(
            "energy_sensors",
            time_s,
            sensors=[sensor.describe() for sensor in self._sensors.working],
            refused=self._sensors.refused,
            reason=None if self._sensors.working else self._sensors.why_none,
        )
        if not self._sensors.working:
            return

        def wait(pause_s: float) -> bool:
            time.sleep(pause_s)
            return not stopped()

        idle = read_idle(self._sensors, wait)
        refresh_s = refresh_periods(self._sensors)
        self._folder.add_event("energy_idle", time_s, readings=idle, refresh_s=refresh_s)

    def read(self, time_s: float, *, all_now: bool = False) -> None:
        """Read what is due."""
        self._reader.read(time_s, all_now=all_now)

    def power_w(self) -> float | None:
        """Return the power of the widest domains now."""
        return self._reader.power_w()

    def close(self) -> None:
        """Write what is left."""
        self._log.close()
