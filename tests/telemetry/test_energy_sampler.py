"""Reading energy sensors while something runs: when, which one, and what if it fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import MachineError
from stepscope.hardware.energy import Kind, Sensor, Sensors
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.table import read_table
from stepscope.telemetry import energy_sampler
from stepscope.telemetry.energy_sampler import EnergyWatch, read_idle, refresh_periods


def scripted(
    name: str, values: Iterable[float | str], domain: str = "package-0", **about: Any
) -> Sensor:
    """Make a sensor that says these values in turn; a word is why it refuses."""
    left: Iterator[float | str] = iter(values)

    def read() -> float:
        value = next(left)
        if isinstance(value, str):
            raise MachineError(value)
        return value

    kind: Kind = about.pop("kind", "counter")
    return Sensor(name, domain, kind, read, **about)


class Watched:
    """A reader with a table to write and a list of the events it recorded."""

    def __init__(self, folder: Path, *sensors: Sensor) -> None:
        self.file = folder / schema.ENERGY
        self.file.write_text(",".join(schema.ENERGY_COLUMNS) + "\n")
        self.events: list[dict[str, Any]] = []
        self.log = CsvLog(self.file)
        self.reader = EnergyWatch(Sensors(sensors, {}), self.log, self._note)

    def _note(self, kind: str, time_s: float, **detail: Any) -> None:
        self.events.append({"event": kind, "time_s": time_s, **detail})

    def read(self, *times_s: float) -> list[tuple[Any, ...]]:
        for time_s in times_s:
            self.reader.read(time_s)
        self.log.flush()
        table = read_table(self.file)
        return list(zip(*(table[name] for name in schema.ENERGY_COLUMNS), strict=True))


@pytest.fixture
def _reading_costs_nothing(monkeypatch):
    """A first reading that is slow on a busy machine would put off the next ones."""
    monkeypatch.setattr(energy_sampler, "thread_time", lambda: 0.0)


@pytest.fixture
def watching(tmp_path):
    with ExitStack() as logs:

        def watch(*sensors: Sensor) -> Watched:
            watched = Watched(tmp_path, *sensors)
            logs.push(watched.log)
            return watched

        yield watch


def tenths(count: int) -> list[float]:
    return [number / 10 for number in range(count)]


def test_counters_and_powers_are_written_as_they_come(watching):
    power = scripted("rail", [4.5, 4.75], "VDD_IN", kind="power")
    watched = watching(scripted("rapl", [1_000_000_000.25, 1_000_000_001.5]), power)
    assert watched.read(0.0, 0.1) == [
        (0.0, "rapl", 1_000_000_000.25, None),
        (0.0, "rail", None, 4.5),
        (0.1, "rapl", 1_000_000_001.5, None),
        (0.1, "rail", None, 4.75),
    ]


@pytest.mark.usefixtures("_reading_costs_nothing")
def test_a_sensor_that_fails_is_recorded_and_the_others_continue(watching):
    watched = watching(scripted("a", [5.0, *["no file"] * 9], "a"), scripted("b", tenths(9), "b"))
    names = [row[1] for row in watched.read(*tenths(6))]
    assert (names.count("a"), names.count("b")) == (1, 6)
    failed = {"event": "energy_sensor_failed", "time_s": 0.3, "sensor": "a", "domain": "a"}
    assert watched.events == [{**failed, "reason": "no file"}]


def test_one_bad_reading_is_forgiven(watching):
    watched = watching(scripted("rapl", [1.0, "half written", 3.0]))
    assert [row[2] for row in watched.read(0.0, 0.1, 0.2)] == [1.0, 3.0]
    assert watched.events == []


@pytest.mark.usefixtures("_reading_costs_nothing")
def test_a_counter_that_stands_still_for_long_has_failed(watching):
    watched = watching(scripted("stuck", [7.0] * 99))
    watched.read(*(float(number) for number in range(15)))
    assert [(each["sensor"], each["time_s"]) for each in watched.events] == [("stuck", 10.0)]
    assert "did not change" in watched.events[0]["reason"]


def test_a_part_that_rests_has_not_failed(watching):
    whole = scripted("package", tenths(99), contains=frozenset({"uncore"}))
    watched = watching(whole, scripted("uncore", [0.0] * 99, "uncore"))
    watched.read(*(float(number) for number in range(15)))
    assert watched.events == []


def test_a_costly_sensor_is_read_more_seldom_and_once_a_second_at_least(watching):
    def costly() -> float:
        return float(sum(range(300_000)))

    watched = watching(
        Sensor("costly", "costly", "power", costly), scripted("cheap", tenths(99), "cheap")
    )
    names = [row[1] for row in watched.read(*tenths(31))]
    assert 3 <= names.count("costly") <= 5
    assert names.count("cheap") >= 25, "but for a first reading that was slow"


def test_power_is_that_of_the_widest_domains_since_it_was_last_asked(watching):
    package = scripted("package", [10.0, 12.0, 13.0], contains=frozenset({"core"}))
    core = scripted("core", [1.0, 2.0, 3.0], "core")
    memory = scripted("dram", [5.0, 5.5, 6.0], "dram")
    reader = watching(package, core, memory).reader
    reader.read(0.0)
    assert reader.power_w() is None
    reader.read(0.1)
    assert reader.power_w() == pytest.approx(25.0)
    reader.read(0.2)
    assert reader.power_w() == pytest.approx(15.0)


def test_the_idle_machine_is_read_for_about_a_second_one_sensor_a_domain():
    clock_ns = iter(range(0, 10**10, 100_000_000))
    sensors = Sensors(
        (scripted("first", tenths(99)), scripted("second", []), scripted("broken", ["no"], "gpu")),
        {},
    )
    readings = read_idle(sensors, lambda pause_s: True, lambda: next(clock_ns))
    assert list(readings) == ["first"]
    assert len(readings["first"]) == 10
    assert readings["first"][0] == (0.1, 0.0)


def test_who_is_told_to_stop_does_not_wait_for_the_idle_second():
    sensors = Sensors((scripted("rapl", [1.0]),), {})
    assert len(read_idle(sensors, lambda pause_s: False)["rapl"]) == 1


def test_a_sensors_own_period_is_seen_by_reading_it_fast():
    clock_ns = iter(range(0, 10**10, 100_000))
    # Read each 0.1 ms, and new each millisecond.
    fine = scripted("fine", [float(number // 10) for number in range(999)])
    slow, broken = scripted("slow", [1.0] * 999, "gpu"), scripted("broken", ["no"], "dram")
    found = refresh_periods(Sensors((fine, slow, broken), {}), lambda: next(clock_ns))
    assert found == {"fine": pytest.approx(1e-3), "slow": None, "broken": None}
