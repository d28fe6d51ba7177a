"""What one run of a setting came to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.analyze.sweep_summary import mean_step, metrics, rate, start_up_steps
from stepscope.records import run_folder, run_reader, schema
from stepscope.records.types import StepFigures


def a_run(tmp_path: Path, spec: dict[str, Any], steps: int, loss: str = "1.0") -> run_reader.Run:
    """Write a run whose steps are slow until its buffers are full."""
    made = run_folder.create(tmp_path, "a", "run", spec)
    slow = start_up_steps(spec)
    rows = [
        {"epoch": 1, "step": n, "start_s": n, "samples": 8, "step_s": 1.0 if n <= slow else 0.1,
         "data_s": 0.05, "detail": "full"}
        for n in range(1, steps + 1)
    ]  # fmt: skip
    _write(made.path / schema.STEPS, schema.STEP_COLUMNS, rows)
    epoch = {"epoch": 1, "split": "train", "total_s": 9.0, "loss": loss, "samples": 8 * steps}
    _write(made.path / schema.EPOCHS, schema.EPOCH_COLUMNS, [epoch])
    return run_reader.load_run(made.path)


def _write(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    lines = [",".join(str(row.get(name, "")) for name in columns) for row in rows]
    path.write_text("\n".join([",".join(columns), *lines]) + "\n")


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
    steps = [{"samples": 8, "step_s": 0.5}, {"samples": None, "step_s": 9.0}]
    assert rate(steps) == 16
    assert rate(steps[1:]) is None
