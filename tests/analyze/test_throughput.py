"""How fast a run or a trial was, and what that figure is based on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from written_runs import write_run, write_steps

from stepscope.analyze.throughput import rate_of_trial, throughput_of
from stepscope.records.run_reader import Run, load_run


def run_with_steps(path: Path, times_s: list[float], samples: list[int] | int = 8) -> Run:
    run = write_run(path / "run", None)
    write_steps(run, times_s, samples)
    return load_run(run)


def test_the_summary_s_figure_comes_first_and_says_of_what_it_is(tmp_path: Path) -> None:
    later = throughput_of(load_run(write_run(tmp_path / "a", 123.0)))
    assert (later.samples_per_s, later.basis) == (123.0, "epochs after the first")
    only = write_run(tmp_path / "b", 123.0, summary={"dropped_epochs": []})
    assert throughput_of(load_run(only)).basis == "all epochs"


def test_without_one_it_is_that_of_the_steps_after_the_start(tmp_path: Path) -> None:
    # Three slow ones of start-up, then five of 8 samples in 0.5 s.
    found = throughput_of(run_with_steps(tmp_path, [9.0] * 3 + [0.5] * 5))
    assert found.samples_per_s == pytest.approx(16)
    assert found.basis == "steps after the first 3"


def test_a_run_with_too_few_steps_has_none_and_a_reason(tmp_path: Path) -> None:
    found = throughput_of(run_with_steps(tmp_path, [0.5] * 7))
    assert found.samples_per_s is None
    assert "wanted 5 steps" in found.basis
    assert "found 4" in found.basis
    assert throughput_of(load_run(write_run(tmp_path / "bare", None))).samples_per_s is None


def test_steps_that_do_not_say_their_samples_are_no_rate(tmp_path: Path) -> None:
    found = throughput_of(run_with_steps(tmp_path, [0.5] * 20, samples=0))
    assert found.samples_per_s is None
    assert "do not record how many samples" in found.basis


NO_RATES = (None, 0, -3, math.inf, math.nan)


@pytest.mark.parametrize("nonsense", NO_RATES)
def test_a_figure_that_is_no_rate_is_not_taken_for_one(tmp_path: Path, nonsense: float) -> None:
    run = write_run(tmp_path / "a", None, summary={"samples_per_s": nonsense})
    assert throughput_of(load_run(run)).samples_per_s is None


# --- a trial of a sweep ---------------------------------------------------------------------------


def metrics(
    dropped: list[int], steady_steps: int = 20, whole: float | None = 100.0
) -> dict[str, Any]:
    """Return the metrics of a trial that started slowly."""
    steady = {"steady_samples_per_s": 150.0, "steady_steps": steady_steps}
    return {"dropped_epochs": dropped, **steady, "samples_per_s": whole}


@pytest.mark.parametrize(
    ("of_trial", "rate", "basis"),
    [
        (metrics([]), 150.0, "steps after the start"),
        (metrics([], steady_steps=5), 150.0, "steps after the start"),
        (metrics([], steady_steps=4), 100.0, "all epochs"),
        (metrics([1]), 100.0, "epochs after the first"),
        (metrics([], whole=None), 150.0, "steps after the start"),
        (metrics([1], whole=None), None, "the trial recorded none"),
        ({}, None, "the trial recorded none"),
        *(({"samples_per_s": bad}, None, "the trial recorded none") for bad in NO_RATES),
        *((metrics([]) | {"steady_samples_per_s": bad}, 100.0, "all epochs") for bad in NO_RATES),
    ],
)
def test_a_short_trial_is_compared_without_its_start(
    of_trial: dict[str, Any], rate: float | None, basis: str
) -> None:
    assert rate_of_trial(of_trial) == (rate, basis)
