"""What each setting of a sweep came to, from folders whose figures are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from written_runs import write_sweep

from stepscope.analyze.sweep_summary import rows_of
from stepscope.records.sweep_folder import load_sweep


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
