"""What is looked at in the middle of a run: counters by phase, in steps that are marked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from software_events import SOFTWARE

from stepscope.hardware.perf_events import Counters, open_counters
from stepscope.meter.counter_window import CounterWindow
from stepscope.meter.step_meter import StepMeter
from stepscope.meter.step_rows import BACKWARD, DATA, FORWARD, OPTIMIZER, EpochTiming
from stepscope.processes import training_session
from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_reader import Run
from stepscope.records.types import TrainingResult
from stepscope.settings import RunSpec
from stepscope.train.profile_window import InsideView, ProfilePosition, seen_inside

ASKED = RunSpec(counters=3)
PHASES = (DATA, FORWARD, BACKWARD, OPTIMIZER)


def look(path: Path, counters: Counters, place: ProfilePosition, steps: int) -> InsideView:
    """Go through an epoch as the loop does, with a view of the counters."""
    file = path / schema.STEPS
    file.write_text(",".join(schema.STEP_COLUMNS) + "\n")
    with CsvLog(file) as log:
        meter = StepMeter(log, 0)
        view = InsideView(place, CounterWindow(counters.read, meter), meter, schema.COUNTERS)
        switch_after = view.begin(1, 0)
        meter.open_epoch(EpochTiming(1))
        meter.loader_started()
        for step in range(1, steps + 1):
            for phase in PHASES:
                meter.lap(phase)
            meter.end_step(step, 8, None)
            if step == switch_after:
                switch_after = view.switch(step)
        view.end(steps)
        meter.close_epoch()
    return view


@pytest.fixture
def counters() -> Counters:
    opened = open_counters(SOFTWARE)
    if opened.absent:
        pytest.skip(f"no software events here: {opened.absent}")
    return opened


def test_the_steps_with_counters_are_marked_and_counted_by_phase(
    tmp_path: Path, counters: Counters
) -> None:
    view = look(tmp_path, counters, ProfilePosition(1, 2, 4), steps=6)
    lines = (tmp_path / schema.STEPS).read_text().splitlines()[1:]
    at = schema.STEP_COLUMNS.index("detail")
    details = [line.split(",")[at] for line in lines]
    assert details == ["full", "counters", "counters", "counters", "full", "full"]
    seen = seen_inside(view, ASKED, counters)
    assert seen["absent"] == {}
    assert seen["counters"]["steps"] == 3
    phases = seen["counters"]["phases"]
    assert set(phases) == {"data", "forward", "backward", "optimizer"}
    assert all(phase["task_clock_ns"] > 0 for phase in phases.values())
    counters.close()


def test_a_run_without_room_for_a_look_says_so(tmp_path: Path, counters: Counters) -> None:
    view = look(tmp_path, counters, ProfilePosition(), steps=2)
    seen = seen_inside(view, ASKED, counters)
    assert list(seen) == ["absent"]
    assert "3 steps or more" in seen["absent"]["counters"]
    counters.close()


def test_counters_that_cannot_be_opened_say_why_once(tmp_path: Path, counters: Counters) -> None:
    none = Counters({}, {"cycles": "a virtual machine", "instructions": "a virtual machine"})
    view = look(tmp_path, counters, ProfilePosition(), steps=2)
    replaced = replace(view, detail=schema.LAYERS)  # the layers, of which nobody asked
    assert seen_inside(replaced, ASKED, none) == {"absent": {"counters": "a virtual machine"}}
    counters.close()


def test_a_run_lets_go_of_its_counters(
    train: Callable[..., Run], counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_session, "open_counters", lambda events: counters)
    result: TrainingResult = {}
    train(epochs=1, evaluate=False, counters=2, result=result)
    assert result["counters"]["phases"]
    for descriptor in counters.descriptors.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
