"""Findings on how a script computes, on its compilations and on other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from written_tables import write_tables

from stepscope.analyze.findings import Finding, findings_of

STEPS = 60
PHASES = {"data_s": 0.0, "transfer_s": 0.0, "forward_s": 0.03, "backward_s": 0.06}
STEP = {**PHASES, "optimizer_s": 0.01, "other_s": 0.0, "step_s": 0.1, "samples": 32}
OPERATIONS = {"count": 40, "convolution_share": 0.1, "contiguous_share": 1.0}
SETUP: dict[str, Any] = {
    "threads": 2,
    "parameters": 100_000,
    "parameter_tensors": 10,
    "dtype": "float32",
    "optimizers": [{"name": "AdamW", "tensors": 10, "fused": True, "foreach": None}],
    "operations": OPERATIONS,
    "anomaly_detection": False,
    "evaluation_with_gradients_s": 0.0,
}
COMPILED = {"limit_reached": False, "compilations": [], "graph_breaks": []}


def findings(
    path: Path,
    setup: dict[str, Any] | None = None,
    step: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    telemetry: list[dict[str, Any]] | None = None,
    device: str = "cpu",
    last: dict[str, Any] | None = None,
) -> dict[str, Finding]:
    """Return the findings on a run of one epoch with a setup and steps like these."""
    steps = [
        {"epoch": 1, "step": number + 1, "start_s": 0.1 * number, "detail": "full"}
        | STEP
        | (step or {})
        for number in range(STEPS)
    ]
    steps[-1] |= last or {}
    epoch = {"epoch": 1, "split": "train", "start_s": 0.0, "total_s": 6.0}
    run = write_tables(
        path,
        steps,
        [epoch | {"loader_start_s": 0.0, "loader_stop_s": 0.0}],
        telemetry or [],
        kind="trace",
        spec={"script": "train.py", "arguments": []},
        environment={"cpus_usable": 2, "device": device},
        summary={"wall_s": 6.0, "script_setup": {**SETUP, **(setup or {})}, **(summary or {})},
    )
    return {finding.name: finding for finding in findings_of(run)}


def test_a_sound_setup_gives_no_finding(tmp_path: Path) -> None:
    assert findings(tmp_path) == {}


# An optimiser that takes 40 of 130 ms.
SLOW_UPDATE = {"optimizer_s": 0.04, "step_s": 0.13}


@pytest.mark.parametrize("foreach", [None, False])
def test_an_optimiser_that_goes_tensor_by_tensor_is_to_be_fused(
    tmp_path: Path, foreach: bool | None
) -> None:
    optimizer = {"name": "AdamW", "tensors": 400, "fused": None, "foreach": foreach}
    found = findings(tmp_path, {"optimizers": [optimizer]}, SLOW_UPDATE)["unfused_optimizer"]
    assert "AdamW updates 400 tensors one by one" in found.text
    assert found.change == "pass fused=True to AdamW"
    assert found.saves_s == pytest.approx(STEPS * 0.04 * (1 - 1 / 2.5))


@pytest.mark.parametrize(
    ("name", "fused", "foreach", "device"),
    [
        ("AdamW", True, None, "cpu"),
        ("AdamW", None, True, "cpu"),
        ("LBFGS", None, None, "cpu"),
        ("AdamW", None, None, "cuda:0"),  # torch updates many tensors at once by default
    ],
)
def test_an_optimiser_that_is_fused_or_cannot_be_is_left_alone(
    tmp_path: Path, name: str, fused: bool | None, foreach: bool | None, device: str
) -> None:
    optimizer = {"name": name, "tensors": 400, "fused": fused, "foreach": foreach}
    found = findings(tmp_path, {"optimizers": [optimizer]}, SLOW_UPDATE, device=device)
    assert "unfused_optimizer" not in found


CONVOLVING = {**OPERATIONS, "convolution_share": 0.98}


@pytest.mark.parametrize(
    ("setup", "name", "change", "saves_s"),
    [
        ({"threads": 8}, "too_many_threads", "set_num_threads(2)", STEPS * 0.1 * 3 / 4),
        ({"operations": CONVOLVING}, "contiguous_convolutions", "channels_last", STEPS * 0.09 / 6),
        ({"anomaly_detection": True}, "anomaly_detection", "set_detect_anomaly", None),
        (
            {"evaluation_with_gradients_s": 2.0},
            "gradients_in_evaluation",
            "no_grad",
            2 * 0.05 / 1.05,
        ),
        ({"dtype": "float64"}, "double_precision", "float32", STEPS * 0.09 / 2),
        (
            {"dtype": "float64", "operations": CONVOLVING},
            "double_precision",
            "float32",
            STEPS * 0.09 * 3 / 4,
        ),
    ],
)
def test_a_setting_that_slows_training_down_is_found_with_what_its_change_saves(
    tmp_path: Path, setup: dict[str, Any], name: str, change: str, saves_s: float | None
) -> None:
    found = findings(tmp_path, setup)
    assert set(found) == {name}
    assert change in str(found[name].change)
    assert found[name].saves_s
    assert saves_s is None or found[name].saves_s == pytest.approx(saves_s)


@pytest.mark.parametrize(
    "operations",
    [
        {"count": 40, "convolution_share": 0.98, "contiguous_share": 0.05},
        {"count": 40, "convolution_share": 0.3, "contiguous_share": 1.0},
        {"count": 2000, "convolution_share": 0.98, "contiguous_share": 1.0},
        {"count": 40, "convolution_share": None, "contiguous_share": None},
        None,
    ],
)
def test_other_convolutions_stay_as_they_are(tmp_path: Path, operations: Any) -> None:
    assert "contiguous_convolutions" not in findings(tmp_path, {"operations": operations})


def test_a_tiny_batch_is_mostly_fixed_cost(tmp_path: Path) -> None:
    quick = {"forward_s": 0.0005, "backward_s": 0.0005, "optimizer_s": 0.0002, "step_s": 0.0012}
    summary = {"wall_s": 0.1}
    found = findings(tmp_path, None, {**quick, "samples": 1}, summary)["tiny_batch"]
    assert "batch_size=8" in str(found.change)
    larger = findings(tmp_path / "larger", None, {**quick, "samples": 64}, summary)
    of_one_large_sample = findings(tmp_path / "large", None, {"samples": 1})
    assert "tiny_batch" not in larger | of_one_large_sample


@pytest.mark.parametrize(("first", "of_the_backward_pass"), [(True, 0.8), (False, 0.4)])
def test_gradients_that_no_optimiser_uses_cost_a_part_of_the_backward_pass(
    tmp_path: Path, first: bool, of_the_backward_pass: float
) -> None:
    unused = {"unused_gradients": 8, "unused_gradients_first": first}
    unused["unused_gradients_share"] = 0.3
    found = findings(tmp_path, unused)["unused_gradients"]
    assert "for 8 of 10 weight tensors" in found.text
    assert "requires_grad_(False)" in str(found.change)
    assert found.saves_s == pytest.approx(of_the_backward_pass * STEPS * STEP["backward_s"])
    assert "unused_gradients" not in findings(tmp_path / "none")


# --- torch.compile


def compilation(reason: str | None = None) -> dict[str, Any]:
    where = {"function": "forward", "line": "net.py:7"}
    return {"start_s": 0.0, "took_s": 0.5, "reason": reason, **where}


def recompiled(path: Path, reason: str, last: dict[str, Any] | None = None) -> Finding:
    again = [compilation(reason) for _ in range(3)]
    compiled = {**COMPILED, "compilations": [compilation(), *again]}
    return findings(path, summary={"compilation": compiled}, last=last)["recompilations"]


MISMATCH = "tensor 'x' size mismatch at index 0. expected 32, actual 7"


def test_batches_of_many_sizes_are_compiled_as_dynamic(tmp_path: Path) -> None:
    found = recompiled(tmp_path, MISMATCH)
    assert "compiled code again 3 times" in found.text
    assert "batches differ in size" in found.text
    assert "dynamic=True" in str(found.change)
    assert found.saves_s == 1.5
    assert "net.py:7" in found.evidence[0]


def test_a_smaller_last_batch_is_to_be_dropped(tmp_path: Path) -> None:
    found = recompiled(tmp_path, MISMATCH, last={"samples": 7})
    assert "the last batch is smaller" in found.text
    assert "drop_last=True" in str(found.change)


def test_other_reasons_of_compiling_again_are_given(tmp_path: Path) -> None:
    assert "self.depth == n" in recompiled(tmp_path, "self.depth == 3").text


def test_graph_breaks_name_their_lines(tmp_path: Path) -> None:
    compiled = {
        **COMPILED,
        "compilations": [compilation(), compilation()],
        "graph_breaks": [{"reason": "Unsupported Tensor.item()", "line": "net.py:9", "count": 2}],
    }
    found = findings(tmp_path, summary={"compilation": compiled})["graph_breaks"]
    assert "at net.py:9" in found.text
    assert "Unsupported Tensor.item()" in found.evidence[0]
    assert found.saves_s == pytest.approx(0.5)


def test_code_that_is_compiled_once_gives_no_finding(tmp_path: Path) -> None:
    compiled = {**COMPILED, "compilations": [compilation()]}
    assert findings(tmp_path, summary={"compilation": compiled}) == {}


# --- other programs


def samples(machine_cpus: float, own_cpus: float, workers: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "time_s": 0.5 * number,
            "workers": workers,
            "main_cpu_s": 0.5 * own_cpus * number,
            "workers_cpu_s": 0.0,
            "machine_cpu_s": 100 + 0.5 * machine_cpus * number,
        }
        for number in range(12)
    ]


def test_other_programs_that_take_the_cpus_make_timings_doubtful(tmp_path: Path) -> None:
    found = findings(tmp_path, telemetry=samples(2.0, 0.6))["busy_machine"]
    assert found.text == (
        "Other programs used 70.0 % of the CPU while this ran, so the timings cannot be trusted."
    )
    assert found.saves_s is None


@pytest.mark.parametrize(("machine_cpus", "own_cpus"), [(2.0, 1.9), (1.2, 0.6), (0.7, 0.6)])
def test_an_idle_machine_or_one_with_room_is_not_busy(
    tmp_path: Path, machine_cpus: float, own_cpus: float
) -> None:
    assert findings(tmp_path, telemetry=samples(machine_cpus, own_cpus)) == {}


def test_compilers_of_the_run_itself_are_not_other_programs(tmp_path: Path) -> None:
    compiled = {**COMPILED, "compilations": [{**compilation(), "took_s": 6.0}]}
    found = findings(tmp_path, summary={"compilation": compiled}, telemetry=samples(2.0, 0.6))
    assert "busy_machine" not in found
