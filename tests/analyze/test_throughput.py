"""How fast a run was, and whether its steps give reason to doubt that."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_runs import write_run, write_steps

from stepscope.analyze.throughput import doubts_about, rate_of_trial, step_times, throughput_of
from stepscope.records.run_reader import Run, load_run
from stepscope.stats import median


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
    assert "4 steps" in found.basis
    assert "5 are needed" in found.basis
    assert throughput_of(load_run(write_run(tmp_path / "bare", None))).samples_per_s is None


def test_steps_that_do_not_say_their_samples_are_no_rate(tmp_path: Path) -> None:
    found = throughput_of(run_with_steps(tmp_path, [0.5] * 20, samples=0))
    assert found.samples_per_s is None
    assert "do not say how many samples" in found.basis


@pytest.mark.parametrize("nonsense", [0, -3, "fast", [1]])
def test_a_figure_that_is_no_rate_is_not_taken_for_one(tmp_path: Path, nonsense: object) -> None:
    run = write_run(tmp_path / "a", None, summary={"samples_per_s": nonsense})
    assert throughput_of(load_run(run)).samples_per_s is None


def test_steps_of_smaller_batches_are_not_compared_with_the_others(tmp_path: Path) -> None:
    run = run_with_steps(tmp_path, [9, 9, 9, 0.5, 0.5, 0.1], [8, 8, 8, 8, 8, 3])
    assert step_times(run) == [0.5, 0.5]


def test_a_steady_run_gives_no_doubts(tmp_path: Path) -> None:
    random = Random(0)
    times = [0.1 * random.uniform(0.9, 1.1) for _ in range(90)]
    assert doubts_about(run_with_steps(tmp_path, times)) == {}


def test_a_run_that_gets_slower_drifts(tmp_path: Path) -> None:
    times = [0.1 * (1 + number / 100) for number in range(90)]
    doubts = doubts_about(run_with_steps(tmp_path, times))
    assert list(doubts) == ["drift"]
    assert "longer than in the first" in doubts["drift"]


def test_a_run_that_gets_faster_drifts_too(tmp_path: Path) -> None:
    times = [0.1 * (2 - number / 100) for number in range(90)]
    assert "shorter than in the first" in doubts_about(run_with_steps(tmp_path, times))["drift"]


def test_noise_within_a_third_is_no_drift(tmp_path: Path) -> None:
    # Half of the steps take three times as long, throughout; which half the median hits is chance.
    first, last = [0.1] * 8 + [0.3] * 7, [0.1] * 7 + [0.3] * 8
    times = [0.1] * 3 + first + first + last
    assert median(last) == pytest.approx(3 * median(first))
    assert "drift" not in doubts_about(run_with_steps(tmp_path, times))


def test_steps_far_above_the_others_do_not_settle(tmp_path: Path) -> None:
    times = [0.1] * 90
    for number in range(5, 90, 10):
        times[number] = 0.9
    doubts = doubts_about(run_with_steps(tmp_path, times))
    assert list(doubts) == ["do not settle"]
    assert doubts["do not settle"].startswith("9 of 87 take over twice the median")


def test_one_hiccup_is_not_worth_a_word(tmp_path: Path) -> None:
    assert doubts_about(run_with_steps(tmp_path, [0.1] * 50 + [0.3] + [0.1] * 50)) == {}


def test_too_few_steps_say_nothing_about_a_course(tmp_path: Path) -> None:
    assert doubts_about(run_with_steps(tmp_path, [0.1] * 15 + [0.9] * 15)) == {}


@pytest.mark.parametrize("unit", [0.01, 1.0, 100.0])
def test_drift_does_not_depend_on_the_unit_and_is_turned_round_with_the_run(
    tmp_path: Path, unit: float
) -> None:
    start, times = [unit] * 3, [unit] * 30 + [1.25 * unit] * 30 + [1.5 * unit] * 30
    there = doubts_about(run_with_steps(tmp_path / "there", start + times))["drift"]
    back = doubts_about(run_with_steps(tmp_path / "back", start + times[::-1]))["drift"]
    assert there == "in the last third they are 50.0 % longer than in the first"
    assert back == "in the last third they are 33.3 % shorter than in the first"


# --- a trial of a sweep ---------------------------------------------------------------------------


def metrics(
    dropped: list[int] | None, steady_steps: int = 20, whole: float | None = 100.0
) -> dict[str, Any]:
    """Say of a trial that started slowly what its metrics would."""
    told = {} if dropped is None else {"dropped_epochs": dropped}
    steady = {"steady_samples_per_s": 150.0, "steady_steps": steady_steps}
    return {**told, **steady, "samples_per_s": whole}


@pytest.mark.parametrize(
    ("of_trial", "rate", "basis"),
    [
        (metrics([]), 150.0, "steps after the start"),
        (metrics([], steady_steps=5), 150.0, "steps after the start"),
        (metrics([], steady_steps=4), 100.0, "all epochs"),
        (metrics([1]), 100.0, "epochs after the first"),
        (metrics(None), 100.0, "the trial's summary"),
        (metrics([], whole=None), 150.0, "steps after the start"),
        (metrics([1], whole=None), None, "its metrics have none"),
        ({}, None, "its metrics have none"),
    ],
)
def test_a_short_trial_is_compared_without_its_start(
    of_trial: dict[str, Any], rate: float | None, basis: str
) -> None:
    assert rate_of_trial(of_trial) == (rate, basis)


odd = st.none() | st.floats() | st.integers(-5, 5) | st.text(max_size=3)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "samples_per_s": odd,
            "steady_samples_per_s": odd,
            "steady_steps": st.integers(0, 20),
            "dropped_epochs": st.lists(st.integers(1, 3), max_size=2),
        },
    )
)
def test_whatever_was_recorded_a_rate_is_above_0_or_unknown(of_trial: dict[str, Any]) -> None:
    rate, basis = rate_of_trial(of_trial)
    assert rate is None or 0 < rate < float("inf")
    assert basis
