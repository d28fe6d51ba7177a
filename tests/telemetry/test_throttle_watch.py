"""Throttling as events: a machine's tree that changes under a watch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machine_trees import JETSON_NANO, LAPTOP, VIRTUAL_MACHINE, thermal_zones, write_tree

from stepscope.hardware.gpu import DeviceFigures
from stepscope.hardware.thermal import find_zones
from stepscope.telemetry.telemetry_sampler import Surroundings
from stepscope.telemetry.throttle_watch import Throttling

POLICY = "sys/devices/system/cpu/cpufreq/policy{}"
FULL_KHZ, LOW_KHZ = 1_479_000, 921_600
COOL = DeviceFigures(held_back_by=())


class Machine:
    """A tree, and the events recorded of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[dict[str, Any]] = []
        self.watched: list[str] | None = None
        self.watch = Throttling(root, self.record)

    def record(self, kind: str, time_s: float, **detail: Any) -> None:
        if kind == "throttling_watched":
            assert self.watched is None, "recorded once"
            self.watched = detail["what"]
        else:
            self.events.append({"event": kind, "time_s": time_s, **detail})

    def clocks(self, name: str, khz: int) -> None:
        for file in self.root.glob(f"{POLICY.format('*')}/{name}"):
            file.write_text(f"{khz}\n")

    def run(self, loads: Iterable[tuple[int, float]], begin_s: int = 0) -> None:
        """Look once a second, at these clocks in kHz and busy CPUs."""
        for time_s, (khz, busy) in enumerate(loads, begin_s):
            self.clocks("scaling_cur_freq", khz)
            self.check(float(time_s), busy)

    def trip(self, zone: str, kind: str, celsius: float) -> None:
        (folder,) = (each.folder for each in find_zones(self.root) if each.kind == zone)
        (folder / "trip_point_0_type").write_text(f"{kind}\n")
        (folder / "trip_point_0_temp").write_text(f"{round(celsius * 1000)}\n")

    def check(self, time_s: float, busy: float = 1.0, **celsius: float) -> None:
        zones = {zone.kind.replace("-", "_"): zone for zone in find_zones(self.root)}
        heat_c = {zones[kind]: degrees for kind, degrees in celsius.items()}
        self.watch.check(time_s, busy, heat_c, COOL)


@pytest.fixture
def nano(tmp_path: Path) -> Machine:
    return Machine(write_tree(JETSON_NANO, tmp_path))


def test_a_clock_that_falls_under_load_is_an_event_with_an_end(nano):
    nano.run([(FULL_KHZ, 1.0)] * 4 + [(LOW_KHZ, 1.0)] * 4 + [(FULL_KHZ, 1.0)] * 4)
    assert nano.events == [
        {
            "event": "throttling",
            "time_s": 4.0,
            "what": "clock",
            "from": 1479.0,
            "to": 921.6,
            "unit": "MHz",
        },
        {"event": "throttling_ended", "time_s": 8.0, "what": "clock", "lasted_s": 4.0},
    ]


@pytest.mark.parametrize(
    "loads",
    [
        pytest.param([(FULL_KHZ, 1.0)] * 4 + [(102_000, 0.1)] * 6, id="nobody computes"),
        pytest.param([(FULL_KHZ, 1.0)] * 4 + [(600_000, 1.0)] + [(FULL_KHZ, 1.0)] * 3, id="a dip"),
        pytest.param(
            [(3_200_000, 4.0)] * 4 + [(4_700_000, 1.0)] * 4 + [(3_200_000, 4.0)] * 4,
            id="few busy CPUs reach more",
        ),
    ],
)
def test_a_clock_that_falls_for_another_reason_is_no_throttling(nano, loads):
    nano.run(loads)
    assert nano.events == []


def test_a_clock_that_recovers_for_a_moment_is_one_event(nano):
    fallen = [(LOW_KHZ, 1.0)] * 3
    nano.run([(FULL_KHZ, 1.0)] * 3 + fallen + [(FULL_KHZ, 1.0)] + fallen)
    assert [event["event"] for event in nano.events] == ["throttling"]


def test_a_clock_that_more_busy_cpus_share_is_held_against_theirs(nano):
    nano.run([(4_700_000, 1.0)] * 4 + [(3_200_000, 4.0)] * 6)
    assert nano.events == []
    nano.run([(2_000_000, 4.0)] * 4, begin_s=10)
    (event,) = nano.events
    assert (event["time_s"], event["from"], event["to"]) == (10.0, 3200.0, 2000.0)


def test_heat_at_a_trip_point_is_an_event_that_says_from_what_to_what(tmp_path):
    machine = Machine(write_tree(JETSON_NANO, tmp_path))
    machine.trip("CPU-therm", "passive", 70.0)
    for time_s, celsius in enumerate((45.0, 60.0, 69.5, 71.0, 60.0, 60.0, 60.0)):
        machine.check(float(time_s), CPU_therm=celsius)
    began, ended = machine.events
    assert began == {
        "event": "throttling",
        "time_s": 2.0,
        "what": "temperature",
        "from": 45.0,
        "to": 69.5,
        "unit": "°C",
        "limit": 70.0,
        "zone": "CPU-therm",
    }
    assert (ended["event"], ended["lasted_s"]) == ("throttling_ended", 2.0)


def test_a_zone_is_held_against_its_own_trip_point(nano):
    nano.trip("GPU-therm", "passive", 60.0)
    nano.check(0.0, CPU_therm=75.0, GPU_therm=50.0)
    assert nano.events == []
    nano.check(1.0, CPU_therm=75.0, GPU_therm=60.0)
    (event,) = nano.events
    assert (event["zone"], event["from"], event["to"]) == ("GPU-therm", 50.0, 60.0)


@pytest.mark.parametrize(("kind", "trip_c"), [("active", 60.0), ("passive", 20.8), ("hot", -274.0)])
def test_a_trip_point_that_slows_nothing_down_is_none(kind, trip_c, nano):
    nano.trip("CPU-therm", kind, trip_c)
    nano.check(0.0, CPU_therm=75.0)
    assert nano.events == []
    nano.check(1.0, CPU_therm=90.0)
    (event,) = nano.events
    assert event["limit"] == 90.0


def test_two_processors_are_two_zones_though_of_one_type(tmp_path):
    tree = replace(VIRTUAL_MACHINE, files={**VIRTUAL_MACHINE.files, **thermal_zones(x86_pkg=50.0)})
    root = write_tree(tree, tmp_path)
    second = root / "sys/class/thermal/thermal_zone1"
    second.mkdir()
    (second / "type").write_text("x86-pkg\n")
    (second / "temp").write_text("95000\n")
    machine = Machine(root)
    assert Surroundings(root, machine.record, lambda: None).read(0.0, 0.0)["temperature_c"] == 95.0
    (event,) = machine.events
    assert (event["what"], event["to"], event["limit"]) == ("temperature", 95.0, 90.0)


def test_the_processors_own_count_of_throttling_is_an_event_when_it_grows(tmp_path):
    machine = Machine(write_tree(LAPTOP, tmp_path))
    count = machine.root / ("sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count")
    machine.check(0.0)
    count.write_text("43\n")
    for time_s in (1.0, 2.0, 3.0, 4.0):
        machine.check(time_s)
    began, ended = machine.events
    assert (began["what"], began["from"], began["to"]) == ("throttle count", 52, 55)
    assert ended["lasted_s"] == 1.0


def test_a_device_that_is_held_back_says_by_what(nano):
    held = DeviceFigures(99.0, 900.0, 83.0, ("heat (driver)", "power cap"), index=1)
    cool = DeviceFigures(99.0, 1800.0, 60.0, ())
    for time_s, device in enumerate((cool, held, COOL, COOL, COOL)):
        nano.watch.check(float(time_s), 1.0, {}, device)
    assert [event["event"] for event in nano.events] == ["throttling", "throttling_ended"]
    assert nano.events[0]["reasons"] == "heat (driver), power cap (GPU 1)"


def test_a_power_cap_is_throttling_only_if_the_clock_falls(nano):
    capped = [DeviceFigures(99.0, mhz, 60.0, ("power cap",)) for mhz in (1800.0, 1600.0, 1200.0)]
    for time_s, device in enumerate(capped):
        nano.watch.check(float(time_s), 1.0, {}, device)
    (event,) = nano.events
    assert (event["time_s"], event["reasons"], event["to"]) == (2.0, "power cap", 1200.0)


def test_a_limit_that_is_lowered_is_an_event_and_an_unreadable_file_is_none(nano):
    nano.check(0.0)
    nano.clocks("scaling_max_freq", 918_000)
    nano.check(1.0)
    nano.check(2.0)
    (event,) = nano.events
    assert (event["what"], event["from"], event["to"]) == ("clock limit", 1479.0, 918.0)
    for file in nano.root.glob(f"{POLICY.format('*')}/scaling_max_freq"):
        file.write_text("garbage")
    for file in nano.root.glob(f"{POLICY.format('*')}/scaling_cur_freq"):
        file.unlink()
    nano.check(3.0)
    assert nano.events == [event]


def test_the_figures_of_a_board_are_its_hottest_zone_and_its_gpu(nano):
    load = nano.root / "sys/devices/gpu.0/load"
    load.parent.mkdir(parents=True)
    load.write_text("734\n")
    around = Surroundings(nano.root, nano.record, lambda: 5.25)
    assert around.read(0.0, 0.0) == pytest.approx(
        {"device_percent": 73.4, "device_mhz": 76.8, "power_w": 5.25, "temperature_c": 38.0}
    )
    assert around.read(0.5, 0.4) == {}
    assert around.read(1.0, 0.9) != {}


@pytest.mark.parametrize(
    ("tree", "watched"),
    [
        (JETSON_NANO, ["temperature", "clock limit", "clock"]),
        (LAPTOP, ["temperature", "throttle count", "clock limit", "clock"]),
        (VIRTUAL_MACHINE, []),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_what_can_be_watched_is_recorded_at_the_first_check(tree, watched, tmp_path):
    machine = Machine(write_tree(tree, tmp_path))
    around = Surroundings(machine.root, machine.record, lambda: None)
    figures = around.read(0.0, 0.0)
    around.read(5.0, 5.0)
    assert (machine.watched, machine.events) == (watched, [])
    assert (set(figures.values()) == {None}) == (not watched)
