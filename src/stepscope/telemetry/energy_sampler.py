"""Sample the energy sensors during a training; the readings are interpreted from the folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import thread_time

from stepscope.errors import MachineError
from stepscope.hardware.energy import Sensor, Sensors, find_sensors
from stepscope.meter.clock import now_ns, seconds
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.energy_readings import STALL_S, grown_j, widest
from stepscope.records.run_folder import RunFolder

MOST_SHARE = 0.001  # of one core, which sampling shares with the training, per kind of reading
READ_EVERY_S = 0.1
IDLE_S = 1.0
_LONGEST_S = 1.0  # between two readings, however costly they are
_MOMENT_S = 0.03
_CHANGES = 8  # updates within that moment suffice to compute a period
_PATIENCE = 3  # failures in a row: a file may be caught while it is written


# Records an event and its time, as `RunFolder.add_event` does.
RecordEvent = Callable[..., None]


def pause_after_s(
    cost_s: float, shortest_and_longest_s: tuple[float, float], most_share: float = MOST_SHARE
) -> float:
    """Return the pause after a reading that took `cost_s` of CPU time."""
    shortest_s, longest_s = shortest_and_longest_s
    return min(longest_s, max(shortest_s, cost_s / most_share))


@dataclass
class _Domain:
    """A domain, its sensor, and the last reading."""

    sensor: Sensor
    cost_s: float = float("inf")
    due_s: float = float("-inf")
    failures: int = 0
    failed: bool = False
    value: float | None = None
    read_at_s: float = 0.0
    changed_at_s: float = 0.0
    last_power: tuple[float, float] | None = None  # time and value at the last call of `power_w`

    def read(self, time_s: float) -> float:
        """Read the sensor and measure the cost of that."""
        began_s = thread_time()
        value = self.sensor.read()
        self.cost_s = min(self.cost_s, thread_time() - began_s)
        self.due_s = time_s + pause_after_s(self.cost_s, (READ_EVERY_S, _LONGEST_S)) * 0.95
        if value != self.value:
            self.changed_at_s = time_s
        self.failures, self.value, self.read_at_s = 0, value, time_s
        return value

    def power_w(self) -> float | None:
        """Return the current power; of a counter, the mean since the previous call."""
        if self.failed or self.value is None:
            return None
        if self.sensor.kind == "power":
            return self.value
        before, self.last_power = self.last_power, (self.read_at_s, self.value)
        if before is None or before[0] >= self.read_at_s:
            return None
        took_s = self.read_at_s - before[0]
        grown = grown_j(before[1], self.value, took_s, self.sensor.range_j)
        return None if grown is None else grown / took_s


class EnergyWatch:
    """Read one sensor of every domain: an idle second before a run, then when due until its end.

    Without `sensors`, energy was not requested, and nothing is read or recorded.
    """

    def __init__(self, sensors: Sensors | None, log: CsvLog, record_event: RecordEvent) -> None:
        self._sensors = sensors
        self._log = log
        self._record_event = record_event
        self._domains = {name: _Domain(sensor) for name, sensor in _first_of_each(sensors).items()}
        self.every_s = READ_EVERY_S if self._domains else float("inf")

    @classmethod
    def of_run(cls, folder: RunFolder, root: Path, *, asked: bool) -> EnergyWatch:
        """Find the sensors of this machine, if energy was requested, to record them in a run."""
        log = CsvLog(folder.path / schema.ENERGY)
        return cls(find_sensors(root) if asked else None, log, folder.add_event)

    def begin(self, time_s: float, stopped: Callable[[], bool]) -> None:
        """Record the sensors and the idle power of the machine."""
        sensors = self._sensors
        if sensors is None:
            return
        self._record_event(
            "energy_sensors",
            time_s,
            sensors=[sensor.describe() for sensor in sensors.working],
            refused=sensors.refused,
            reason=None if sensors.working else sensors.why_none,
        )
        if not sensors.working:
            return

        def wait(pause_s: float) -> bool:
            time.sleep(pause_s)
            return not stopped()

        idle = read_idle(sensors, wait)
        refresh_s = refresh_periods(sensors)
        self._record_event("energy_idle", time_s, readings=idle, refresh_s=refresh_s)

    def read(self, time_s: float, *, all_now: bool = False) -> None:
        """Read what is due, or everything; `time_s` is on the run's clock."""
        for name, domain in self._domains.items():
            if not domain.failed and (all_now or time_s >= domain.due_s):
                self._read(name, domain, time_s)

    def close(self) -> None:
        """Write the remaining readings."""
        self._log.close()

    def power_w(self) -> float | None:
        """Return the current power of the widest domains; None while one is unknown."""
        powers = {name: domain.power_w() for name, domain in self._domains.items()}
        known = [powers[name] for name in self._widest()]
        return sum(filter(None, known)) if known and None not in known else None

    def _widest(self) -> list[str]:
        domains = self._domains.items()
        return widest(
            {n: d.sensor.contains for n, d in domains if d.sensor.addable and not d.failed}
        )

    def _read(self, name: str, domain: _Domain, time_s: float) -> None:
        sensor, reason = domain.sensor, None
        try:
            value = domain.read(time_s)
        except MachineError as error:
            domain.failures += 1
            reason = str(error) if domain.failures >= _PATIENCE else None
        else:
            is_counter = sensor.kind == "counter"
            cells = f"{value:.6f}," if is_counter else f",{value:.6f}"
            self._log.append(f"{time_s:.6f},{sensor.name},{cells}")
            still_s = time_s - domain.changed_at_s
            if is_counter and still_s >= STALL_S and name in self._widest():
                reason = f"its counter did not change for {still_s:.0f} s"
        if reason is not None:
            domain.failed = True
            self._record_event(
                "energy_sensor_failed", time_s, sensor=sensor.name, domain=name, reason=reason
            )


def _first_of_each(sensors: Sensors | None) -> dict[str, Sensor]:
    """Return one sensor of each domain: several of a domain measure the same."""
    first: dict[str, Sensor] = {}
    for sensor in () if sensors is None else sensors.working:
        first.setdefault(sensor.domain, sensor)
    return first


def read_idle(
    sensors: Sensors, wait: Callable[[float], bool], clock_ns: Callable[[], int] = now_ns
) -> dict[str, list[tuple[float, float]]]:
    """Read one sensor per domain for a second; `wait` sleeps and returns whether to continue."""
    first = _first_of_each(sensors)
    readings: dict[str, list[tuple[float, float]]] = {each.name: [] for each in first.values()}
    began_ns = clock_ns()
    go_on = True
    while go_on:
        time_s = seconds(clock_ns() - began_ns)
        for sensor in first.values():
            try:
                readings[sensor.name].append((round(time_s, 6), sensor.read()))
            except MachineError:
                readings.pop(sensor.name)
                first = {name: each for name, each in first.items() if each is not sensor}
        go_on = time_s < IDLE_S and wait(READ_EVERY_S)
    return readings


def refresh_periods(
    sensors: Sensors, clock_ns: Callable[[], int] = now_ns, moment_s: float = _MOMENT_S
) -> dict[str, float | None]:
    """Measure how often each sensor updates, by reading it continuously; None if it did not."""
    return {sensor.name: _refresh_s(sensor, clock_ns, moment_s) for sensor in sensors.working}


def _refresh_s(sensor: Sensor, clock_ns: Callable[[], int], moment_s: float) -> float | None:
    changes_s: list[float] = []
    last, began_ns = None, clock_ns()
    while len(changes_s) < _CHANGES and (now := seconds(clock_ns() - began_ns)) < moment_s:
        try:
            value = sensor.read()
        except MachineError:
            return None
        if value != last:
            changes_s.append(now)
        last = value
    # The first value is not an update, and the second may have been due at any time.
    changed_s = changes_s[1:]
    if len(changed_s) < 2:
        return None
    return (changed_s[-1] - changed_s[0]) / (len(changed_s) - 1)
