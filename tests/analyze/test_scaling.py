"""What was measured with more processes, from folders whose figures are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_runs import write_run
from written_tables import write_table

from stepscope.analyze.scaling import (
    Base,
    Mode,
    Scale,
    ScalingInputs,
    bucket_count,
    predict,
    scaling_of,
)
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
    exchanges = [{"processes": 2, "allreduce_s": 0.04, "reason": None}]
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
        ([{"processes": 2, "allreduce_s": None, "reason": "no torch"}], "no torch"),
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


# --- predictions, worked out by hand --------------------------------------------------------------


# One process, 64 samples in 100 ms: 50 ms backward, 10 ms that do not depend on the samples.
ONE = Base(1, 64, samples_per_s=640, step_s=0.1, backward_s=0.05, fixed_s=0.01)
# 1 MB of gradients at 10 MB/s: four processes take 6/4 * 0.1 s + 6 * 1 ms = 156 ms.
SLOW = ScalingInputs(1e7, latency_s=0.001, gradient_bytes=10**6, overlap_share=0)


def test_a_ring_sends_its_share_over_each_link_in_twice_the_turns() -> None:
    by_processes = {count: SLOW.allreduce_s(count) for count in (1, 2, 4)}
    assert by_processes == pytest.approx({1: 0, 2: 0.102, 4: 0.156})


def test_every_portion_of_the_gradients_takes_its_own_turns() -> None:
    mib = 2**20
    inputs = ScalingInputs(mib, latency_s=1, gradient_bytes=60 * mib, overlap_share=0)
    # One of 1 MiB, then up to 25 MiB each: 60 MiB go as 1 + 25 + 25 + 9.
    sizes = {1: 1, mib: 1, mib + 1: 2, 26 * mib: 2, 60 * mib: 4}
    assert {size: bucket_count(size) for size in sizes} == sizes
    assert inputs.allreduce_s(4) == pytest.approx(6 / 4 * 60 + 6 * 4)


def test_portions_are_those_of_the_training() -> None:
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    parameters = [torch.zeros(2**18) for _ in range(60)]  # of 1 MiB each
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, 25 * 2**20]
    buckets, _ = dist._compute_bucket_assignment_by_size(parameters, limits)
    assert len(buckets) == bucket_count(60 * 2**20)


@pytest.mark.parametrize(
    ("mode", "batch", "step_s"),
    # A quarter of 90 ms, the 10 ms that stay, 156 ms of all-reduce; or the whole 100 ms and that.
    [("strong", 64, 0.1885), ("weak", 256, 0.256)],
)
def test_each_computes_on_its_part_and_waits_for_the_allreduce(
    mode: Mode, batch: int, step_s: float
) -> None:
    found = predict(mode, batch, 4, ONE, SLOW)
    assert found["step_s"] == pytest.approx(step_s)
    assert found["samples_per_s"] == pytest.approx(batch / step_s)
    assert found["speedup"] == pytest.approx(batch / 64 * 0.1 / step_s)
    assert found["efficiency"] == pytest.approx(found["speedup"] / 4)


def test_what_is_hidden_is_never_more_than_the_backward_pass_takes() -> None:
    half = replace(SLOW, overlap_share=0.5)
    # Half of 156 ms is more than a quarter of 50 ms of backward, and than the whole of them.
    assert predict("strong", 64, 4, ONE, half)["blocking_s"] == pytest.approx(0.156 - 0.0125)
    assert predict("weak", 256, 4, ONE, half)["blocking_s"] == pytest.approx(0.156 - 0.05)
    tenth = replace(SLOW, overlap_share=0.1)
    assert predict("weak", 256, 4, ONE, tenth)["blocking_s"] == pytest.approx(0.9 * 0.156)


def test_the_process_with_the_most_samples_sets_the_pace() -> None:
    ten = Base(1, 10, samples_per_s=100, step_s=0.1, backward_s=0, fixed_s=0)
    at_once = ScalingInputs(1e30, 0, gradient_bytes=1, overlap_share=0)
    # Ten samples over four: some have three of them.
    assert predict("strong", 10, 4, ten, at_once)["speedup"] == pytest.approx(10 / 3)


def test_a_base_of_two_is_taken_without_its_communication() -> None:
    two = Base(2, 64, 640, step_s=0.1, backward_s=0.06, fixed_s=0.01, communication_s=0.02)
    found = predict("strong", 64, 4, two, replace(SLOW, overlap_share=1))
    # Half of the 70 ms that go with the samples, 10 ms that stay; backward's own part is 40 ms.
    assert found["blocking_s"] == pytest.approx(0.156 - 0.02)
    assert found["step_s"] == pytest.approx(0.045 + 0.136)
    assert found["efficiency"] == pytest.approx(found["speedup"] / 2)


shares = st.floats(0, 1)


@given(
    processes=st.integers(2, 64),
    step_s=st.floats(1e-4, 10),
    parts=st.tuples(shares, shares),
    slow=st.builds(
        ScalingInputs, st.floats(1e3, 1e12), st.floats(0, 0.1), st.integers(1, 10**10), shares
    ),
)
def test_no_prediction_is_better_than_ideal_and_a_faster_network_is_never_worse(
    processes: int, step_s: float, parts: tuple[float, float], slow: ScalingInputs
) -> None:
    backward_s, fixed_s = (part * step_s / 2 for part in parts)
    base = Base(1, 64, 64 / step_s, step_s, backward_s, fixed_s)
    fast = replace(slow, bandwidth_bytes_per_s=2 * slow.bandwidth_bytes_per_s)
    for mode, batch in (("strong", 64), ("weak", 64 * processes)):
        found = predict(mode, batch, processes, base, slow)
        assert 0 < found["efficiency"] <= 1 + 1e-9
        assert 0 <= found["blocking_s"] <= found["allreduce_s"]
        assert found["samples_per_s"] == pytest.approx(batch / found["step_s"])
        better = predict(mode, batch, processes, base, fast)
        assert better["speedup"] >= found["speedup"] * (1 - 1e-9)
