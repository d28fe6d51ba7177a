"""Peaks and runs on this very machine: measured, kept, and held against each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from machine_trees import RASPBERRY_PI, write_tree
from stepscope_command import TINY, Stepscope

from stepscope.errors import MachineError
from stepscope.hardware.host import describe_host
from stepscope.hardware.machine_setup import apply, changes
from stepscope.processes import peak_benchmark
from stepscope.report.terminal.doctor_table import print_peaks
from stepscope.supervisor import machine_peaks
from stepscope.supervisor.machine_peaks import measure_peaks, peak_for

SMALL = (256,)
TOO_LARGE = 2**24


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def test_a_run_is_held_against_the_peak_of_its_type_and_threads(
    cache: Path, stepscope: Stepscope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_peaks, "ARRAY_BYTES", 2**20)
    monkeypatch.setattr(machine_peaks, "MATRIX_SIZES", (*SMALL, TOO_LARGE))
    peaks = {
        (each["conditions"]["precision"], each["conditions"]["threads"]): each
        for each in measure_peaks()["peaks"]
    }
    peak = peaks["fp32", 1]
    assert peak["matrix_size"] == SMALL[0]  # there is no memory for the other
    assert peak["flop_per_s"] > 1e8
    assert peak["bytes_per_s"] > 1e7
    asked = ("run", *TINY, "--epochs", 1, "--threads", 1, "--counters", 2, "--json")
    summary = stepscope(*asked, env={"XDG_CACHE_HOME": str(cache)}).json["summary"]
    assert summary["roofline"]["peak"]["flop_per_s"] == peak["flop_per_s"]
    assert summary["share_of_peak"] == pytest.approx(summary["flop_per_s"] / peak["flop_per_s"])
    assert summary["share_of_peak"] > 0
    assert all(phase["flop_per_s"] > 0 for phase in summary["roofline"]["phases"].values())
    assert summary["counters"] or summary["absent"]["counters"]


def test_where_nothing_can_be_measured_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process: to start another one takes longer than to fail.
    monkeypatch.setattr(
        machine_peaks, "ask_process", lambda _, asked: peak_benchmark.measure(asked)
    )
    monkeypatch.setattr(machine_peaks, "MATRIX_SIZES", (TOO_LARGE,))
    with pytest.raises(MachineError, match=r"fp32 with 1 thread: .*memory"):
        measure_peaks()


def test_a_precision_that_fails_is_left_out_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(peak_benchmark._TYPES, "bf16", "bool")  # no device multiplies these
    answer = peak_benchmark.measure({"matrix_sizes": SMALL, "array_bytes": 2**20})
    assert {peak["precision"] for peak in answer["peaks"]} == {"fp32"}
    assert {what.partition(" with ")[0] for what in answer["left_out"]} == {"bf16"}
    assert all(answer["left_out"].values())


def test_a_prepared_run_is_told_to_measure_the_prepared_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tree(RASPBERRY_PI, tmp_path)
    monkeypatch.setenv("STEPSCOPE_SYSTEM_ROOT", str(root))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    environment = {"torch": "0.0", "threads": 1, "device": "cpu"}
    _, plain = peak_for({"spec": {}, "environment": environment})
    apply(changes({"governor": "performance"}, root), root)
    _, prepared = peak_for({"spec": {}, "environment": environment})
    assert str(plain).endswith("cpu with 1 thread: stepscope doctor --peaks")
    assert "prepared" not in str(plain)
    assert "prepared machine" in str(prepared)
    assert str(prepared).endswith("stepscope doctor --apply, then stepscope doctor --peaks")


def test_a_run_that_never_had_a_torch_says_so() -> None:
    peak, reason = peak_for({"spec": {}, "environment": describe_host()})
    assert peak is None
    assert "torch" in str(reason)


def test_a_busy_machine_is_told_that_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    conditions = {"device": "cpu", "device_name": None, "precision": "fp32", "threads": 2}
    peak = {"conditions": conditions, "flop_per_s": 4.2e10, "bytes_per_s": 2**33}
    busy = {**peak, "matrix_size": 512, "pressure_cpu": 40.0}
    print_peaks(Console(), {"peaks": [busy], "left_out": {}})
    said = capsys.readouterr().out
    assert "42.0" in said
    assert "8.0 GiB/s" in said
    assert "40 %" in said
