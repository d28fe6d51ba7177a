"""How near the limit: against figures worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written_runs import write_run
from written_tables import write_table

from stepscope.analyze.roofline import attainable_flop_per_s, how_near_the_limit
from stepscope.analyze.run_summary import Measured, summarize
from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run

# A step of 8 samples: 240 operations forward and 560 backward.
FLOPS = {
    "per_sample": 100.0,
    "forward": 240,
    "backward": 560,
    "estimated_bytes": {"forward": 24, "backward": 280},
}
OTHERS = ("data_s", "transfer_s", "optimizer_s")
PEAK = {"flop_per_s": 1000.0, "bytes_per_s": 50.0}


def run_of(path: Path, *rows: dict[str, Any], kind: str = "run") -> Run:
    folder = write_run(path / "run", summary={}, kind=kind)
    usual = {"epoch": 1, "start_s": 0.0, "detail": "full", "samples": 8, "other_s": 0.0}
    numbered = [{**usual, "step": number, **row} for number, row in enumerate(rows, 1)]
    write_table(folder, schema.STEPS, numbered)
    return load_run(folder)


STEP = {"step_s": 2.0, **dict.fromkeys(OTHERS, 0.3), "forward_s": 0.4, "backward_s": 0.7}


def test_operations_are_held_against_whole_steps_and_against_their_phases(tmp_path: Path) -> None:
    steps = run_of(tmp_path, STEP, STEP).steps
    near = how_near_the_limit(steps, [], FLOPS, PEAK)
    assert near["flop_per_s"] == pytest.approx(800 / 2.0)
    assert near["share_of_peak"] == pytest.approx(0.4)
    forward, backward = (near["roofline"]["phases"][name] for name in ("forward", "backward"))
    # Forward does 10 operations a byte, for which 50 bytes/s give 500; backward 2, which give 100.
    assert forward["flop_per_s"] == pytest.approx(240 / 0.4)
    assert (forward["flop_per_byte"], forward["roof_flop_per_s"]) == (10.0, 500.0)
    assert (backward["flop_per_byte"], backward["roof_flop_per_s"]) == (2.0, 100.0)
    assert backward["share_of_roof"] == pytest.approx(560 / 0.7 / 100)


def test_a_smaller_last_step_counts_by_its_samples(tmp_path: Path) -> None:
    half = {"step_s": 1.0, "forward_s": 0.2, "backward_s": 0.35, "samples": 4}
    near = how_near_the_limit(run_of(tmp_path, STEP, half).steps, [], FLOPS, PEAK)
    assert near["flop_per_s"] == pytest.approx(1200 / 3.0)
    assert near["roofline"]["phases"]["forward"]["flop_per_s"] == pytest.approx(600)


def test_dropped_epochs_and_steps_of_another_detail_take_no_part(tmp_path: Path) -> None:
    slow = {**STEP, "step_s": 90.0}
    hooked = {"step_s": 90.0, "detail": "counters", "epoch": 2}
    steps = run_of(tmp_path, slow, {**STEP, "epoch": 2}, hooked).steps
    assert how_near_the_limit(steps, [1], FLOPS, PEAK)["flop_per_s"] == pytest.approx(400)


def test_on_a_device_the_phases_have_the_device_s_time(tmp_path: Path) -> None:
    row = {**STEP, "forward_device_s": 0.8, "backward_device_s": 1.4}
    near = how_near_the_limit(run_of(tmp_path, row).steps, [], FLOPS, PEAK)
    assert near["roofline"]["phases"]["forward"]["flop_per_s"] == pytest.approx(300)


def test_without_a_peak_the_rate_is_known_and_the_share_is_not(tmp_path: Path) -> None:
    near = how_near_the_limit(run_of(tmp_path, STEP).steps, [], FLOPS, None)
    assert near["flop_per_s"] == pytest.approx(400)
    assert near["share_of_peak"] is None
    assert near["roofline"]["phases"]["forward"]["roof_flop_per_s"] is None


def test_a_run_without_a_step_or_a_count_has_none_of_it_and_says_why(tmp_path: Path) -> None:
    for number, rows in enumerate(((), (STEP,))):
        run = run_of(tmp_path / str(number), *rows)
        summary = summarize(run, Measured(flops=FLOPS if not rows else None))
        for name in ("flop_per_s", "share_of_peak", "roofline"):
            assert summary[name] is None
            assert summary["absent"][name]
    assert summary["absent"]["flop_per_s"] == summary["absent"]["flops"]


def test_a_network_without_a_counted_operation_has_a_summary_all_the_same(tmp_path: Path) -> None:
    nothing = {**FLOPS, "per_sample": 0.0, "forward": 0, "backward": 0}
    summary = summarize(run_of(tmp_path, STEP), Measured(flops=nothing))
    for name in ("flop_per_s", "share_of_peak", "roofline"):
        assert summary[name] is None
        assert "no operation that is counted" in summary["absent"][name]


def test_a_trace_says_that_its_operations_are_not_counted(tmp_path: Path) -> None:
    summary = summarize(run_of(tmp_path, STEP, kind="trace"), Measured())
    assert "user script" in summary["absent"]["flop_per_s"]
    assert "runs of our own" not in summary["absent"]["flop_per_s"]


def test_the_roof_has_its_ridge_where_both_limits_meet() -> None:
    assert attainable_flop_per_s(PEAK, 10.0) == 500.0
    assert attainable_flop_per_s(PEAK, 20.0) == attainable_flop_per_s(PEAK, 900.0) == 1000.0
