"""Sampling of the energy sensors during a training, from another process.

Sensors are read ten times a second, costly ones less often, but at least once a second. Two sensors
of one domain measure the same: one is read, and the next one when it fails. Readings are written as
they come and interpreted later, from the folder.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import thread_time

from stepscope.hardware.energy import Sensor, SensorError, Sensors, find_sensors
from stepscope.meter.clock import now_ns, seconds
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.energy_readings import STALL_S, grown_j, widest
from stepscope.records.run_folder import RunFolder
from stepscope.telemetry.sampling_budget import pause_after_s

READ_EVERY_S = 0.1
IDLE_S = 1.0
_LONGEST_S = 1.0  # between two readings, however costly they are
_MOMENT_S = 0.03
_CHANGES = 8  # updates within that moment suffice to compute a period
_PATIENCE = 3  # failures in a row: a file may be caught while it is written


# Records an event and its time, as `RunFolder.add_event` does.
RecordEvent = Callable[..., None]


@dataclass
class _Domain:
    """The sensors of one domain: the one that is read now, and its substitutes."""

    name: str
    sensors: deque[Sensor]
    cost_s: float = float("inf")
    due_s: float = float("-inf")
    failures: int = 0
    value: float | None = None
    read_at_s: float = 0.0
    changed_at_s: float = 0.0
    asked: tuple[float, float] | None = None  # time and value of the last `power_w`

    def pass_on(self) -> Sensor | None:
        """Switch to the next sensor; return None if there is none."""
        self.sensors.popleft()
        self.failures, self.value, self.asked = 0, None, None
        self.cost_s = float("inf")
        return self.sensors[0] if self.sensors else None

    def read(self, time_s: float) -> float:
        """Read the sensor and measure the cost of that."""
        began_s = thread_time()
        value = self.sensors[0].read()
        self.cost_s = min(self.cost_s, thread_time() - began_s)
        self.due_s = time_s + pause_after_s(self.cost_s, (READ_EVERY_S, _LONGEST_S)) * 0.95
        if value != self.value:
            self.changed_at_s = time_s
        self.failures, self.value, self.read_at_s = 0, value, time_s
        return value

    def power_w(self) -> float | None:
        """Return the current power; of a counter, the mean since the previous call."""
        if not self.sensors or self.value is None:
            return None
        if self.sensors[0].kind == "power":
            return self.value
        before, self.asked = self.asked, (self.read_at_s, self.value)
        if before is None or before[0] >= self.read_at_s:
            return None
        took_s = self.read_at_s - before[0]
        grown = grown_j(before[1], self.value, took_s, self.sensors[0].range_j)
        return None if grown is None else grown / took_s


class EnergyReader:
    """Read every domain when it is due, and record when a sensor fails."""

    def __init__(self, sensors: Sensors, log: CsvLog, record_event: RecordEvent) -> None:
        self._log = log
        self._record_event = record_event
        by_domain: dict[str, deque[Sensor]] = defaultdict(deque)
        for sensor in sensors.working:
            by_domain[sensor.domain].append(sensor)
        self._domains = [_Domain(name, found) for name, found in by_domain.items()]

    def read(self, time_s: float, *, all_now: bool = False) -> None:
        """Read what is due, or everything; `time_s` is on the run's clock."""
        for domain in self._domains:
            if domain.sensors and (all_now or time_s >= domain.due_s):
                self._read(domain, time_s)

    def power_w(self) -> float | None:
        """Return the current power of the widest domains; None while one is unknown."""
        powers = {domain.name: domain.power_w() for domain in self._domains}
        known = [powers[name] for name in self._widest()]
        return sum(filter(None, known)) if known and None not in known else None

    def _widest(self) -> list[str]:
        alive = {
            domain.name: domain.sensors[0].contains
            for domain in self._domains
            if domain.sensors and domain.sensors[0].addable
        }
        return widest(alive)

    def _read(self, domain: _Domain, time_s: float) -> None:
        sensor = domain.sensors[0]
        try:
            value = domain.read(time_s)
        except SensorError as error:
            domain.failures += 1
            if domain.failures >= _PATIENCE:
                self._pass_on(domain, time_s, str(error))
            return
        energy, power = (f"{value:.6f}", "") if sensor.kind == "counter" else ("", f"{value:.6f}")
        self._log.append(f"{time_s:.6f},{sensor.name},{energy},{power}")
        still_s = time_s - domain.changed_at_s
        stalled = sensor.kind == "counter" and still_s >= STALL_S
        if stalled and domain.name in self._widest():
            self._pass_on(domain, time_s, f"it has stood still for {still_s:.0f} s")

    def _pass_on(self, domain: _Domain, time_s: float, reason: str) -> None:
        failed = domain.sensors[0]
        following = domain.pass_on()
        self._record_event(
            "energy_sensor_failed",
            time_s,
            sensor=failed.name,
            domain=domain.name,
            reason=reason,
            next=following.name if following else None,
        )
        if following is not None:
            self._read(domain, time_s)


def read_idle(
    sensors: Sensors, wait: Callable[[float], bool], clock_ns: Callable[[], int] = now_ns
) -> dict[str, list[tuple[float, float]]]:
    """Read the sensors for a second before anything runs; return times and values by sensor.

    `wait` sleeps and returns whether to continue. One sensor of each domain is read, and one that
    fails is left out.
    """
    first = {sensor.domain: sensor for sensor in reversed(sensors.working)}
    readings: dict[str, list[tuple[float, float]]] = {each.name: [] for each in first.values()}
    began_ns = clock_ns()
    go_on = True
    while go_on:
        time_s = seconds(clock_ns() - began_ns)
        for sensor in first.values():
            try:
                readings[sensor.name].append((round(time_s, 6), sensor.read()))
            except SensorError:
                readings.pop(sensor.name)
                first = {name: each for name, each in first.items() if each is not sensor}
        go_on = time_s < IDLE_S and wait(READ_EVERY_S)
    return readings


def refresh_periods(
    sensors: Sensors, clock_ns: Callable[[], int] = now_ns, moment_s: float = _MOMENT_S
) -> dict[str, float | None]:
    """Measure how often each sensor updates, by reading it continuously for a moment.

    None if it did not update in that time: then only the run's readings show its period.
    """
    return {sensor.name: _refresh_s(sensor, clock_ns, moment_s) for sensor in sensors.working}


def _refresh_s(sensor: Sensor, clock_ns: Callable[[], int], moment_s: float) -> float | None:
    changes_s: list[float] = []
    last, began_ns = None, clock_ns()
    while len(changes_s) < _CHANGES and (now := seconds(clock_ns() - began_ns)) < moment_s:
        try:
            value = sensor.read()
        except SensorError:
            return None
        if value != last:
            changes_s.append(now)
        last = value
    # The first value is not an update, and the second may have been due at any time.
    changed_s = changes_s[1:]
    if len(changed_s) < 2:
        return None
    return (changed_s[-1] - changed_s[0]) / (len(changed_s) - 1)


class EnergyWatch:
    """Read the sensors of this machine: an idle second before a run, then until its end."""

    def __init__(self, folder: RunFolder, root: Path, *, asked: bool) -> None:
        """Find the sensors, if energy was requested."""
        self._folder = folder
        self._sensors = find_sensors(root) if asked else Sensors((), {})
        self._asked = asked
        self._log = CsvLog(folder.path / schema.ENERGY)
        self._reader = EnergyReader(self._sensors, self._log, folder.add_event)
        self.every_s = READ_EVERY_S if self._sensors.working else float("inf")

    def begin(self, time_s: float, stopped: Callable[[], bool]) -> None:
        """Record the sensors and the idle power of the machine."""
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
        """Return the current power of the widest domains."""
        return self._reader.power_w()

    def close(self) -> None:
        """Write the remaining readings."""
        self._log.close()
