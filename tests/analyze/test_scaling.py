"""What was measured with more processes, from folders whose figures are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written_runs import write_run
from written_tables import write_table

from stepscope.analyze.scaling import Scale, scaling_of
from stepscope.errors import AnswerIsNo
from stepscope.records.sweep_folder import Sweep

# (processes, batch) to the rates of its rounds; a word is how a trial ended.
Rates = dict[tuple[int, int], list[float | str]]
TWICE: Rates = {(1, 64): [100, 100], (2, 64): [150, 150], (2, 128): [180, 180]}
NETWORK = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-5}


def a_sweep(path: Path, rates: Rates, bill: bool = True, **asked: Any) -> Sweep:
    """Write the runs of a measurement, in which several processes communicate for 10 ms a step."""
    trials = []
    for (processes, batch), of_rounds in rates.items():
        for repeat, rate in enumerate(of_rounds, 1):
            index = len(trials)
            values = {"processes": processes, "batch_size": batch}
            trial = {"index": index, "values": values, "repeat": repeat, "status": "completed"}
            if isinstance(rate, str):
                trials.append({**trial, "status": rate, "reason": "as the test wants it."})
                continue
            run = f"trials/{index:03}"
            items = {"items": {"gradients": {"bytes": 4_000_000}}}
            write_run(
                path / run,
                rate,
                spec=values,
                summary={"memory_bill": items if bill else None, "absent": {"memory_bill": "why"}},
                environment={"threads": 2 // processes, "cpus_usable": 2},
            )
            step = {"epoch": 1, "samples": batch, "step_s": batch / rate, "detail": "full"}
            step["communication_s"] = 0.01 if processes > 1 else None
            write_table(path / run, "steps.csv", [{**step, "step": n} for n in range(1, 5)])
            steady = {"step_s": batch / rate, "backward_s": 0.3, "optimizer_s": 0.1, "other_s": 0.0}
            figures = {"steady_samples_per_s": rate, "steady_steps": 2, "steady": steady}
            trials.append({**trial, "run": run, "metrics": figures})
    numbers = sorted({processes for processes, _ in rates})
    told = {"batch_size": 64, "processes": numbers, "predict": [], "exchanges": [], **asked}
    return Sweep(path, {"kind": "scale", "scale": told, "trials": trials})


def rows_of(told: dict[str, Any], which: str = "measured") -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["mode"], row["processes"]): row for row in told[which]}


def test_both_modes_are_tried_and_a_single_process_once() -> None:
    assert Scale(64, (1, 2)).settings() == [
        {"processes": 1, "batch_size": 64},
        {"processes": 2, "batch_size": 64},
        {"processes": 2, "batch_size": 128},
    ]
    assert len(Scale(64, (2, 4)).settings()) == 4


def test_speed_up_and_efficiency_are_ratios_of_rounds(tmp_path: Path) -> None:
    rates: Rates = {(1, 64): [100, 120], (2, 64): [150, 180], (2, 128): [180, 216]}
    rows = rows_of(scaling_of(a_sweep(tmp_path, rates)))
    strong, weak = rows["strong", 2], rows["weak", 2]
    assert strong["speedup"] == pytest.approx(1.5)
    assert strong["low"] == pytest.approx(strong["high"]), "each round says the same"
    assert (strong["efficiency"], weak["efficiency"]) == pytest.approx((0.75, 0.9))
    assert (strong["batch_size"], weak["batch_size"], weak["rounds"]) == (64, 128, 2)
    assert strong["communication_s"] == 0.01
    base = rows["weak", 1]
    assert (base["speedup"], base["low"], base["communication_s"]) == (1, None, None)


def test_one_round_has_no_interval_and_the_answer_says_so(tmp_path: Path) -> None:
    told = scaling_of(a_sweep(tmp_path, {key: rates[:1] for key, rates in TWICE.items()}))
    assert rows_of(told)["strong", 2]["low"] is None
    assert "1.50 times as fast as 1 (too few rounds for an interval), 75.0 %" in told["answer"]
    assert told["predicted"] == []
    assert told["assumed"] is None


def test_only_rounds_that_both_completed_count(tmp_path: Path) -> None:
    rates: Rates = {(1, 64): [100, "failed"], (2, 64): [150, 999], (2, 128): ["failed", 180]}
    rows = rows_of(scaling_of(a_sweep(tmp_path, rates)))
    assert (rows["strong", 2]["speedup"], rows["strong", 2]["rounds"]) == (pytest.approx(1.5), 1)
    assert rows["weak", 2]["speedup"] is None
    assert "no round that the base of 1 completed too" in rows["weak", 2]["reason"]


def test_without_anything_to_compare_the_answer_is_no(tmp_path: Path) -> None:
    rates: Rates = {(1, 64): [100], (2, 64): ["failed"], (2, 128): ["failed"]}
    with pytest.raises(
        AnswerIsNo, match=r"compared: failed: as the test wants it\. The trials are in"
    ):
        scaling_of(a_sweep(tmp_path, rates))


def test_the_smallest_number_is_the_base_and_the_answer_says_so(tmp_path: Path) -> None:
    rates: Rates = {(2, 64): [100], (2, 128): [100], (4, 64): [150], (4, 256): [200]}
    told = scaling_of(a_sweep(tmp_path, rates))
    assert rows_of(told)["weak", 4]["efficiency"] == pytest.approx(1)
    assert "The base is 2 processes, the fewest that were measured." in told["answer"]


def test_processes_that_share_what_one_had_alone_are_told_of(tmp_path: Path) -> None:
    (note,) = scaling_of(a_sweep(tmp_path, TWICE))["notes"]
    assert "2 processes share this machine's CPUs, with 1 thread each; the base had 2" in note


def test_overlap_is_that_of_the_trials_against_the_exchange_alone(tmp_path: Path) -> None:
    exchanges = [{"processes": 2, "exchange_s": 0.04, "reason": None}]
    told = scaling_of(a_sweep(tmp_path, TWICE, predict=[4, 8], exchanges=exchanges, **NETWORK))
    assert told["assumed"]["overlap_share"] == pytest.approx(0.75)
    assert told["assumed"]["gradient_bytes"] == 4_000_000
    assert set(rows_of(told, "predicted")) == {(m, p) for m in ("strong", "weak") for p in (4, 8)}
    # 64 samples in 0.64 s, 0.1 s of them whatever the part; 6.12 ms of exchange, a quarter shows.
    four = rows_of(told, "predicted")["strong", 4]
    assert four["step_s"] == pytest.approx(0.54 / 4 + 0.1 + 0.00612 / 4)
    assert "Predicted over 8 Gbit/s: 8 processes are" in told["answer"]


def test_a_prediction_stands_on_the_round_of_middle_speed(tmp_path: Path) -> None:
    rates: Rates = {(1, 64): [100, 10, 80]}
    told = scaling_of(a_sweep(tmp_path, rates, predict=[2], **NETWORK))
    weak = rows_of(told, "predicted")["weak", 2]
    # 64 samples in 0.8 s, and 2/2 * 4 MB at 1 GB/s; two messages of 10 us for each of two portions.
    assert weak["step_s"] == pytest.approx(0.8 + 0.004 + 0.00004)
    assert weak["samples_per_s"] == pytest.approx(128 / weak["step_s"])
    assert weak["speedup"] == pytest.approx(weak["samples_per_s"] / 80)


@pytest.mark.parametrize(
    ("exchanges", "said"),
    [
        ([], "no trial of several processes has figures"),
        ([{"processes": 2, "exchange_s": None, "reason": "no torch"}], "no torch"),
    ],
)
def test_overlap_that_cannot_be_told_is_none_and_that_is_said(
    tmp_path: Path, exchanges: list[dict[str, Any]], said: str
) -> None:
    unknown = {**NETWORK, "latency_s": None}
    told = scaling_of(a_sweep(tmp_path, TWICE, predict=[4], exchanges=exchanges, **unknown))
    assert told["assumed"]["overlap_share"] == 0
    assert f"no overlap with the backward pass is assumed: {said}" in told["assumed"]["how"]
    assert "no latency, because none was given" in told["assumed"]["how"]


def test_gradients_that_were_not_counted_leave_what_was_measured(tmp_path: Path) -> None:
    told = scaling_of(a_sweep(tmp_path, TWICE, bill=False, predict=[4], **NETWORK))
    assert told["predicted"] == []
    assert told["assumed"]["gradient_bytes"] is None
    assert (
        told["assumed"]["how"] == "no prediction, because the size of the gradients is unknown: why"
    )
    assert rows_of(told)["strong", 2]["speedup"] == pytest.approx(1.5)
