"""The closing figures of runs small enough to work out on paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyze.phase_shares import dropped_epochs_of, time_by_phase
from stepscope.analyze.run_summary import (
    LEAST_BLOCKS,
    Measured,
    cost_by_off_blocks,
    figures_so_far,
    summarize,
)
from stepscope.records.run_reader import Run, load_run
from stepscope.records.table import Table

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")

STEPS = """\
epoch,step,start_s,samples,data_s,transfer_s,forward_s,backward_s,optimizer_s,other_s,step_s,detail
1,1,0.5,8,1.0,0,0.5,0.3,0.1,0.1,2.0,full
1,2,2.5,8,0.2,0,0.4,0.3,0.1,0,1.0,full
2,1,4.0,8,0.1,0.05,0.3,0.4,0.1,0.05,1.0,full
2,2,5.0,8,0.5,0.05,0.3,0.4,0.1,0.05,1.4,full
2,3,6.4,8,0.3,0.05,0.3,0.4,0.1,0.05,1.2,full
2,4,7.6,8,,,,,,,1.2,off
"""
EPOCHS = """\
epoch,split,start_s,loader_start_s,loader_stop_s,loading_s,training_s,total_s,accuracy,top5,samples
0,test,-0.6,0.1,0.1,0.3,0.2,0.6,0.1,0.5,20
1,train,0.0,0.5,0.25,1.7,1.8,3.75,0.25,0.75,16
1,test,3.75,0.1,0.1,0.3,0.2,0.6,0.3,0.8,20
2,train,4.4,0.2,0.1,1.1,3.9,5.2,0.5,0.875,32
2,test,9.6,0.1,0.1,0.3,0.2,0.6,0.45,0.9,20
"""
MEASURED = Measured(wall_s=10.0, preparation_s=0.4, peak_memory_bytes=10**8)


def make_run(path: Path, steps: str = STEPS, epochs: str = EPOCHS, **info: Any) -> Run:
    (path / "run.json").write_text(json.dumps({"schema": 1, "status": "completed", **info}))
    (path / "steps.csv").write_text(steps)
    (path / "epochs.csv").write_text(epochs)
    return load_run(path)


def first_lines(text: str, count: int) -> str:
    return "".join(text.splitlines(keepends=True)[:count])


def nones(summary: dict[str, Any]) -> set[str]:
    return {name for name, value in summary.items() if value is None}


@pytest.fixture
def summary(tmp_path: Path) -> dict[str, Any]:
    return summarize(make_run(tmp_path), MEASURED)


def test_figures_are_what_the_rows_come_to_by_hand(summary: dict[str, Any]) -> None:
    by_hand = {
        "epochs": 2,
        "steps": 6,
        "samples": 48,
        "unattributed_share": 0.15 / 3.6,  # that of `other`
        # Epoch 1: 0.5 + 3.0 + 0.25 = 3.75 of 3.75. Epoch 2: 0.2 + 4.8 + 0.1 = 5.1 of 5.2.
        "accounted_share": (3.75 + 5.1) / (3.75 + 5.2),
        "samples_per_s": 32 / 5.2,  # of the epochs that are kept, by their own clock
        "train_accuracy": 0.5,
        "test_accuracy": 0.45,
        "test_top5": 0.9,
        "wall_s": 10.0,
        "preparation_s": 0.4,
        "peak_memory_bytes": 10**8,
    }
    assert {name: summary[name] for name in by_hand} == pytest.approx(by_hand)
    assert summary["dropped_epochs"] == [1]


def test_shares_medians_and_tails_are_of_the_full_steps_of_the_epochs_that_are_kept(
    summary: dict[str, Any],
) -> None:
    # Epoch 2, full rows only: 1.0 + 1.4 + 1.2 = 3.6 s in all.
    shares = {name: phase["share"] for name, phase in summary["phases"].items()}
    assert shares == pytest.approx(
        {
            "data": 0.9 / 3.6,  # 0.1 + 0.5 + 0.3
            "transfer": 0.15 / 3.6,
            "forward": 0.9 / 3.6,
            "backward": 1.2 / 3.6,
            "optimizer": 0.3 / 3.6,
            "other": 0.15 / 3.6,
        }
    )
    assert tuple(shares) == PHASES
    data = summary["phases"]["data"]  # 0.1, 0.3, 0.5
    assert data["mean_s"] == pytest.approx(0.3)
    assert data["median_s"] == pytest.approx(0.3)
    # Three values: p95 lies at position 1.9, p99 at 1.98, between 0.3 and 0.5.
    assert data["p95_s"] == pytest.approx(0.3 + 0.9 * 0.2)
    assert data["p99_s"] == pytest.approx(0.3 + 0.98 * 0.2)


def test_totals_are_of_all_epochs_with_the_other_rows_by_extrapolation(
    summary: dict[str, Any],
) -> None:
    # Full rows took 3.0 + 3.6 = 6.6 s, all rows 7.8 s: what was seen stands for 7.8 / 6.6 of it.
    assert summary["phases"]["data"]["total_s"] == pytest.approx(2.1 * 7.8 / 6.6)
    assert summary["phases"]["forward"]["total_s"] == pytest.approx(1.8 * 7.8 / 6.6)
    assert sum(phase["total_s"] for phase in summary["phases"].values()) == pytest.approx(7.8)


def test_a_figure_is_absent_with_a_reason_or_there(summary: dict[str, Any]) -> None:
    assert (
        set(summary["absent"])
        == nones(summary)
        == {
            *("validation_accuracy", "energy", "energy_j", "counters", "communication"),
            *("flops", "flop_per_s", "share_of_peak", "roofline"),
            *("device", "layers", "off_blocks", "memory_bill", "page_cache", "requests"),
            *("device_peak_memory_bytes", "throttling"),
            *("stacks", "loader", "checkpoints", "script_setup", "compilation"),
        }
    )
    assert all(summary["absent"].values())


def test_the_only_epoch_is_not_dropped(tmp_path: Path) -> None:
    run = make_run(tmp_path, first_lines(STEPS, 3), first_lines(EPOCHS, 4))
    summary = summarize(run, MEASURED)
    assert summary["dropped_epochs"] == []
    assert summary["phases"]["data"]["share"] == pytest.approx(1.2 / 3.0)
    assert summary["samples_per_s"] == pytest.approx(16 / 3.75)
    assert summary["accounted_share"] == pytest.approx(1)
    assert set(summary["absent"]) == nones(summary)


def test_an_epoch_that_was_not_finished_has_no_part_in_accounted_share_and_rate(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, STEPS, first_lines(EPOCHS, 4))  # stopped in epoch 2
    summary = summarize(run, MEASURED)
    assert summary["accounted_share"] == pytest.approx(1)
    assert (summary["epochs"], summary["steps"]) == (1, 6)
    assert summary["phases"]["data"]["share"] == pytest.approx(0.9 / 3.6)
    assert summary["samples_per_s"] is None, "only the dropped epoch was finished"
    assert "only warm-up epochs" in summary["absent"]["samples_per_s"]
    assert set(summary["absent"]) == nones(summary)


@pytest.mark.parametrize("files", ["headers only", "empty", "missing"])
def test_a_run_without_steps_has_a_reason_for_every_figure_that_it_lacks(
    tmp_path: Path, files: str
) -> None:
    headers = [first_lines(text, 1) if files == "headers only" else "" for text in (STEPS, EPOCHS)]
    run = make_run(tmp_path, *headers)
    if files == "missing":
        (tmp_path / "steps.csv").unlink()
        (tmp_path / "epochs.csv").unlink()
    summary = summarize(run, Measured())
    assert (summary["epochs"], summary["steps"], summary["samples"]) == (0, 0, 0)
    assert summary["dropped_epochs"] == []
    assert summary["phases"] is None
    assert {"accounted_share", "samples_per_s", "test_accuracy", "wall_s"} < nones(summary)
    assert set(summary["absent"]) == nones(summary)
    assert all(summary["absent"].values())
    json.dumps(summary, allow_nan=False)


def test_a_test_before_training_counts_as_a_test_and_not_as_an_epoch(tmp_path: Path) -> None:
    run = make_run(tmp_path, first_lines(STEPS, 1), first_lines(EPOCHS, 2))
    summary = summarize(run, MEASURED)
    assert (summary["epochs"], summary["test_accuracy"]) == (0, 0.1)
    assert summary["absent"]["train_accuracy"] == "no epoch was finished"


def test_steps_without_any_phases_say_so(tmp_path: Path) -> None:
    header, *_, off = STEPS.splitlines()
    summary = summarize(make_run(tmp_path, f"{header}\n{off}\n", first_lines(EPOCHS, 1)), MEASURED)
    assert summary["phases"] is None
    assert summary["absent"]["phases"] == "no step was measured in full detail"
    assert set(summary["absent"]) == nones(summary)


def run_of(steps: Table, drop_epochs: int = 1) -> Run:
    run = Run(Path(), {"spec": {"drop_epochs": drop_epochs}})
    run.__dict__["steps"] = steps
    return run


@given(st.lists(st.integers(1, 9)), st.integers(0, 9))
def test_whatever_is_dropped_comes_first_and_something_is_left(
    epochs: list[int], first: int
) -> None:
    dropped = dropped_epochs_of(run_of(Table({"epoch": epochs}), first))
    left = set(epochs) - set(dropped)
    assert len(dropped) in (0, first)
    assert bool(left) == bool(epochs)
    assert all(earlier < later for earlier in dropped for later in left)


def test_the_spec_says_how_many_epochs_are_dropped(tmp_path: Path) -> None:
    none = summarize(make_run(tmp_path, spec={"drop_epochs": 0}), MEASURED)
    assert none["dropped_epochs"] == []
    assert none["samples_per_s"] == pytest.approx((16 + 32) / (3.75 + 5.2))
    two = summarize(make_run(tmp_path, spec={"drop_epochs": 2}), MEASURED)
    assert two["dropped_epochs"] == [], "there are no more than two"


COLD = {"epoch": 1, "how": "advised", "files": 2, "bytes": 9, "cold_share": 0.5, "reason": "why"}


def test_how_cold_the_files_were_is_that_of_the_first_time(tmp_path: Path) -> None:
    again = {**COLD, "epoch": 2, "cold_share": 1.0}
    events = [{"event": "resume"}, *({"event": "page_cache", **each} for each in (COLD, again))]
    lines = [json.dumps({"time_s": 1.0, **event}) for event in events]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    assert summarize(make_run(tmp_path), MEASURED)["page_cache"] == COLD


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({}, "kept as it was; evict it with --page-cache cold"),
        ({"spec": {"page_cache": "cold"}}, "the run ended before its first epoch"),
        ({"kind": "trace"}, "kept as it was; stepscope does not evict a user script's files"),
    ],
)
def test_where_nothing_was_made_cold_the_reason_says_why(
    tmp_path: Path, info: dict[str, Any], reason: str
) -> None:
    summary = summarize(make_run(tmp_path, **info), MEASURED)
    assert summary["page_cache"] is None
    assert summary["absent"]["page_cache"] == reason


def without_samples(table: str, *lines: int) -> str:
    rows = table.splitlines(keepends=True)
    for line in lines:
        rows[line] = rows[line].replace(",8,", ",,", 1)
    return "".join(rows)


RATES = """\
epoch,split,start_s,loader_start_s,loader_stop_s,total_s,accuracy,samples,samples_per_s
1,train,0.0,0.5,0.25,3.75,,16,4.26667
2,train,4.4,0.2,0.1,5.2,,,6
"""


def test_steps_whose_samples_are_unknown_stand_in_the_total_by_extrapolation(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, without_samples(STEPS, 6), RATES, kind="trace")
    summary = summarize(run, MEASURED)
    assert summary["samples"] == 48, "the sixth as many as the five that are known"
    assert summary["samples_per_s"] == pytest.approx(6)
    assert not {"samples", "samples_per_s"} & summary["absent"].keys()


def test_where_no_step_knows_its_samples_the_run_has_none_and_a_reason(tmp_path: Path) -> None:
    epochs = RATES.replace(",16,4.26667", ",,").replace(",,6\n", ",,\n")
    run = make_run(tmp_path, without_samples(STEPS, 1, 2, 3, 4, 5, 6), epochs, kind="trace")
    summary = summarize(run, MEASURED)
    assert (summary["samples"], summary["samples_per_s"]) == (None, None)
    for name in ("samples", "samples_per_s"):
        assert "number of samples" in summary["absent"][name]
    assert summary["phases"]["data"]["share"] > 0
    assert figures_so_far(Run(run.path, {**run.info, "summary": {}}))["samples"] is None


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Steps as the meter writes them: whole nanoseconds, `other` is what the phases leave."""
    details = draw(st.lists(st.sampled_from(["full", "full", "off", "layers"]), max_size=12))
    names = ["epoch", "step_s", "detail", *(f"{phase}_s" for phase in PHASES)]
    columns: dict[str, list[Any]] = {name: [] for name in names}
    epoch = 1
    for detail in details:
        epoch += draw(st.integers(0, 1))
        spent_ns = [draw(st.integers(0, 10**11)) for _ in PHASES]
        columns["epoch"].append(epoch)
        columns["step_s"].append((sum(spent_ns) or 1) * 1e-9)
        columns["detail"].append(detail)
        for phase, ns in zip(PHASES, spent_ns, strict=True):
            columns[f"{phase}_s"].append(ns * 1e-9 if detail == "full" else None)
        if detail == "full" and not sum(spent_ns):
            columns["other_s"][-1] = 1e-9
    return Table(columns)


@given(tables())
def test_for_any_steps_shares_sum_to_one_and_totals_to_the_time_of_the_run(steps: Table) -> None:
    dropped = dropped_epochs_of(run_of(steps))
    phases = time_by_phase(steps, dropped)
    kept = [
        detail == "full" and epoch not in dropped
        for detail, epoch in zip(steps["detail"], steps["epoch"], strict=True)
    ]
    assert (phases is None) == (not any(kept))
    if phases is None:
        return
    assert sum(phase["share"] for phase in phases.values()) == pytest.approx(1)
    assert sum(phase["total_s"] for phase in phases.values()) == pytest.approx(sum(steps["step_s"]))
    for phase in phases.values():
        assert 0 <= phase["share"] <= 1 + 1e-9
        assert 0 <= phase["median_s"] <= phase["p95_s"] * (1 + 1e-9)
        assert phase["p95_s"] <= phase["p99_s"] * (1 + 1e-9)
        assert phase["total_s"] >= 0


# --- the cost of measuring, from blocks of steps without detail -----------------------------------


def run_with_blocks(blocks: int, full_s: float, off_s: float, drift: float = 0.0) -> Table:
    step_s, detail = [], []
    for _ in range(blocks):
        for kind, took_s, steps in (("full", full_s, 40), ("off", off_s, 20), ("full", full_s, 40)):
            for _ in range(steps):
                step_s.append(took_s + drift * len(step_s))
                detail.append(kind)
    return Table({"step_s": step_s, "detail": detail})


def test_the_cost_is_the_difference_to_the_steps_beside_a_block() -> None:
    cost = cost_by_off_blocks(run_with_blocks(6, full_s=0.0103, off_s=0.01))
    assert cost["blocks"] == 6
    assert cost["overhead_per_step_s"] == pytest.approx(0.0003)
    assert cost["overhead_share"] == pytest.approx(0.03)


def test_a_machine_that_slows_down_all_the_time_is_no_cost() -> None:
    cost = cost_by_off_blocks(run_with_blocks(6, full_s=0.01, off_s=0.01, drift=1e-5))
    assert abs(cost["overhead_per_step_s"]) < 2e-5


def test_a_few_blocks_say_nothing() -> None:
    assert cost_by_off_blocks(run_with_blocks(LEAST_BLOCKS - 1, 0.01, 0.01)) is None
    assert cost_by_off_blocks(Table({"step_s": [], "detail": []})) is None


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 10), st.sampled_from(["full", "off", "layers"])), max_size=300
    )
)
def test_any_mixture_of_details_can_be_weighed(steps: list[tuple[float, str]]) -> None:
    table = Table({"step_s": [s for s, _ in steps], "detail": [d for _, d in steps]})
    cost = cost_by_off_blocks(table)
    assert cost is None or cost["low_s"] <= cost["overhead_per_step_s"] <= cost["high_s"]
