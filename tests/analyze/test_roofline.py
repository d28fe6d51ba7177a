"""How near the limit: against figures worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written_runs import write_run
from written_tables import write_table

from stepscope.analyze.roofline import how_near_the_limit
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
    assert near["roofline"]["peak"] == PEAK
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


@pytest.mark.parametrize(
    ("rows", "kind", "flops", "reason"),
    [
        ([], "run", FLOPS, "no step"),
        ([STEP], "run", None, "the run ended before its operations were counted"),
        ([STEP], "run", {**FLOPS, "per_sample": 0.0, "forward": 0, "backward": 0}, "no matrix"),
        ([STEP], "trace", None, "the script did not reach its end"),
    ],
)
def test_without_steps_or_counted_operations_there_is_a_reason(
    tmp_path: Path, rows: list[Any], kind: str, flops: Any, reason: str
) -> None:
    summary = summarize(run_of(tmp_path, *rows, kind=kind), Measured(flops=flops))
    for name in ("flop_per_s", "share_of_peak", "roofline"):
        assert summary[name] is None
        assert reason in summary["absent"][name]
