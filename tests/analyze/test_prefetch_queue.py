"""The pace of short trials: true although they begin with batches that were prefetched."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import fmean

import pytest
from _loader_world import Loop
from written_tables import write_tables

from stepscope.analyze.sweep_summary import metrics, start_up_steps, whole_turns
from stepscope.records.types import TrialMetrics

TRAIN_S = 0.02


def trial(folder: Path, loop: Loop, workers: int, chance: random.Random) -> TrialMetrics:
    count = start_up_steps({"workers": workers}) + whole_turns(24, workers)
    steps = loop.steps(workers, count, chance)
    return metrics(write_tables(folder, steps, spec={"workers": workers}))


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
@pytest.mark.parametrize("capacity", [0.8, 0.9, 0.97, 1.0, 1.1])  # of the loader
def test_a_loader_near_its_capacity_is_not_called_faster_than_it_stays(
    tmp_path: Path, workers: int, capacity: float
) -> None:
    loop = Loop(load_s=TRAIN_S * workers / capacity, train_s=TRAIN_S, spread=0.05)
    chance = random.Random(0)
    rates = [
        trial(tmp_path / str(number), loop, workers, chance)["steady_samples_per_s"] or 0.0
        for number in range(4)
    ]
    assert fmean(rates) == pytest.approx(loop.rate(workers, chance), rel=0.03)


def test_the_time_that_the_queue_saved_is_waiting_for_data(tmp_path: Path) -> None:
    loop = Loop(load_s=0.1, train_s=TRAIN_S, first_step_s=5.0)
    seen = trial(tmp_path, loop, 4, random.Random(0))["steady"]
    assert seen["step_s"] == pytest.approx(0.025, rel=0.03)
    assert seen["data_s"] == pytest.approx(0.005, rel=0.1)


def test_steps_that_a_free_loader_keeps_up_with_are_taken_as_measured(tmp_path: Path) -> None:
    loop = Loop(load_s=0.02, train_s=TRAIN_S)
    assert trial(tmp_path, loop, 4, random.Random(0))["steady"]["step_s"] == pytest.approx(TRAIN_S)
