"""Counters by phase: scaled, added up, and read only where the window is open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.hardware.perf_events import CounterReading
from stepscope.meter.counter_window import CounterWindow
from stepscope.meter.step_meter import StepMeter
from stepscope.meter.step_rows import BACKWARD, DATA, FORWARD, OPTIMIZER, EpochTiming
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog


@pytest.fixture
def meter(tmp_path: Path) -> Iterator[StepMeter]:
    file = tmp_path / "steps.csv"
    file.write_text(",".join(schema.STEP_COLUMNS) + "\n")
    with CsvLog(file) as log:
        metered = StepMeter(log, 0)
        metered.open_epoch(EpochTiming(1))
        metered.loader_started()
        yield metered


def scripted(**counted: list[CounterReading]) -> Iterator[dict[str, CounterReading]]:
    return (
        dict(zip(counted, readings, strict=True))
        for readings in zip(*counted.values(), strict=True)
    )


def test_a_phase_has_what_was_counted_up_to_its_end_a_step(meter):
    cycles = [CounterReading(at, at, at) for at in (100, 110, 140, 150, 190)]
    instructions = [CounterReading(2 * at, at, at) for at in (100, 110, 140, 150, 190)]
    readings = scripted(cycles=cycles, instructions=instructions)
    window = CounterWindow(lambda: next(readings), meter)
    meter.lap(DATA)  # not yet
    window.open()
    for _ in range(2):
        meter.lap(FORWARD)
        meter.lap(BACKWARD)
    window.close()
    meter.lap(OPTIMIZER)  # not any more
    counted = window.counts(2, {})
    assert counted["steps"] == 2
    assert counted["phases"] == {
        "forward": {"cycles": 10, "instructions": 20, "instructions_per_cycle": 2},
        "backward": {"cycles": 35, "instructions": 70, "instructions_per_cycle": 2},
    }


def test_counters_are_scaled_to_the_whole_time_and_unknown_if_they_never_ran(meter):
    readings = scripted(
        cycles=[CounterReading(7, 10, 5), CounterReading(7, 90, 5)],
        instructions=[CounterReading(7, 10, 10), CounterReading(9, 90, 90)],
        branches=[CounterReading(0, 0, 0), CounterReading(100, 1000, 250)],
    )
    window = CounterWindow(lambda: next(readings), meter)
    window.open()
    meter.lap(FORWARD)
    counted = window.counts(1, {})["phases"]["forward"]
    assert counted == {"cycles": None, "instructions": 2, "branches": 400}
