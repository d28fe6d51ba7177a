"""What each setting of a sweep came to, from folders whose figures are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from written_runs import write_sweep
from written_tables import epoch_row, step, write_tables

from stepscope.analyze.sweep_summary import mean_step, metrics, rate, rows_of, start_up_steps
from stepscope.records.run_reader import Run
from stepscope.records.sweep_folder import load_sweep
from stepscope.records.types import StepFigures


def test_a_row_counts_what_completed_and_takes_the_median_of_it(tmp_path: Path) -> None:
    rates: dict[int, list[float | str]] = {0: [100.0, 102.0, 101.0], 2: [50.0, "failed", 52.0]}
    none, two = rows_of(load_sweep(write_sweep(tmp_path, {"workers": [0, 2]}, rates)))
    assert (none["values"], none["samples_per_s"]["median"]) == ({"workers": 0}, 101)
    assert (two["runs"], two["completed"], two["samples_per_s"]["median"]) == (3, 2, 51)
    assert (two["step_s"], two["test_accuracy"]) == (0.5, None)


def test_a_setting_that_never_completed_has_no_rate(tmp_path: Path) -> None:
    rates: dict[int, list[float | str]] = {0: ["failed"]}
    (row,) = rows_of(load_sweep(write_sweep(tmp_path, {"workers": [0]}, rates)))
    assert row["samples_per_s"] == {"median": None, "low": None, "high": None}
    assert (row["step_s"], row["data_share"], row["peak_memory_bytes"]) == (None, None, None)


def test_short_trials_are_shown_by_the_rate_that_they_are_compared_by(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, {"workers": [0]}, {0: [100.0, 100.0]})
    info = json.loads((sweep / "sweep.json").read_text())
    steady = {"dropped_epochs": [], "steady_samples_per_s": 150.0, "steady_steps": 20}
    for trial in info["trials"]:
        trial["metrics"] |= {**steady, "phases": {"data": 1.0, "forward": 3.0}}
    (sweep / "sweep.json").write_text(json.dumps(info))
    (row,) = rows_of(load_sweep(sweep))
    assert row["samples_per_s"]["median"] == 150
    assert row["data_share"] == pytest.approx(0.25)


# --- what one run of a setting came to ------------------------------------------------------------


def a_run(folder: Path, spec: dict[str, Any], steps: int, loss: str = "1.0") -> Run:
    """Write a run whose steps are slow until its buffers are full."""
    slow = start_up_steps(spec)
    rows = [
        step(number, samples=8, step_s=1.0 if number <= slow else 0.1, data_s=0.05)
        for number in range(1, steps + 1)
    ]
    epoch = epoch_row(1, 0.0, split="train", total_s=9.0, loss=loss, samples=8 * steps)
    return write_tables(folder, rows, [epoch], spec=spec)


@pytest.mark.parametrize(
    ("spec", "left_out"),
    [
        ({}, 2),
        ({"workers": 2, "prefetch": 3}, 8),
        ({"workers": 2, "prefetch": 3, "accumulate": 4}, 4),
        ({"loader": {"num_workers": 2, "prefetch_factor": 4}}, 10),
        ({"loader": {"num_workers": 3}}, 8),
    ],
)
def test_the_batches_that_fill_the_buffers_are_left_out(
    tmp_path: Path, spec: dict[str, Any], left_out: int
) -> None:
    seen = metrics(a_run(tmp_path, spec, steps=left_out + 5))
    assert start_up_steps(spec) == left_out
    assert seen["steady_steps"] == 5
    assert seen["steady_samples_per_s"] == pytest.approx(80)
    assert seen["steady"]["data_s"] == pytest.approx(0.05)


def test_a_run_too_short_to_settle_has_no_steady_rate(tmp_path: Path) -> None:
    seen = metrics(a_run(tmp_path, {"workers": 8, "prefetch": 2}, steps=5))
    assert seen["steady_steps"] == 0
    assert seen["steady_samples_per_s"] is None


def test_a_loss_that_is_no_number_is_none_so_that_a_record_can_hold_it(tmp_path: Path) -> None:
    seen = metrics(a_run(tmp_path, {}, steps=5, loss="nan"))
    assert seen["loss"] is None
    json.dumps(seen, allow_nan=False)


def test_means_are_over_what_is_known() -> None:
    unknown: StepFigures = mean_step([])
    assert set(unknown.values()) == {None}
    steps: list[StepFigures] = [{**unknown, "step_s": 1.0}, {**unknown, "step_s": 3.0}]
    assert mean_step(steps) == {**unknown, "step_s": 2.0}


def test_a_rate_is_of_the_steps_that_know_their_samples() -> None:
    assert rate([8, None], [0.5, 9.0]) == 16
    assert rate([None], [9.0]) is None
