"""`stepscope scale`, as a person types it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from stepscope.errors import MachineError
from stepscope.report.terminal.scale_table import print_scale, scale_chart
from stepscope.supervisor.ask_process import ALLREDUCE, ask_process

PREDICTED = "--predict 4 --bandwidth 1Gbit"


SHORT = shlex.split(
    "--model lenet --samples 64 --batch-size 8 --threads 1 --processes 2,1 --repeats 1"
)


def test_two_processes_are_measured_against_one(stepscope):
    told = stepscope.succeed("scale", *SHORT, "--json").json
    settings = [(row["mode"], row["processes"], row["batch_size"]) for row in told["measured"]]
    assert settings == [("strong", 1, 8), ("strong", 2, 8), ("weak", 1, 8), ("weak", 2, 16)]
    assert all(row["speedup"] > 0 and row["rounds"] == 1 for row in told["measured"])
    assert [row["communication_s"] is None for row in told["measured"]] == [True, False] * 2
    assert (told["predicted"], told["assumed"]) == ([], None)
    recorded = json.loads((Path(told["path"]) / "sweep.json").read_text())
    assert (recorded["kind"], recorded["status"]) == ("scale", "completed")
    assert (Path(told["path"]) / "report.html").is_file()


@pytest.mark.long
def test_it_is_stopped_goes_on_and_predicts_four_from_gradients_that_were_counted(stepscope):
    asked = ("scale", *SHORT, *PREDICTED.split(), "--latency", "20us")
    stopped = stepscope.interrupted_after("trial 1", *asked)
    assert stopped.code == 130, stopped.err
    assert "stepscope scale --resume" in stopped.err

    told = stepscope("scale", "--resume", "runs/latest", "--json").json
    assumed = told["assumed"]
    assert (assumed["bandwidth_bytes_per_s"], assumed["latency_s"]) == (1.25e8, 2e-5)
    assert assumed["gradient_bytes"] == 4 * 62_006
    assert 0 <= assumed["overlap_share"] <= 1
    assert "alone the exchange takes" in assumed["how"]
    predicted = [(row["mode"], row["processes"]) for row in told["predicted"]]
    assert predicted == [("strong", 4), ("weak", 4)]

    again = stepscope.succeed("scale", "--resume", told["path"], "--chart", "speed.svg")
    assert "Predicted, not measured; over 1 Gbit/s, latency 20 µs" in again.out
    assert "trial 1" not in again.err, "what is completed is only shown"
    assert "predicted" in (stepscope.folder / "speed.svg").read_text()


@pytest.mark.long
def test_the_lab_lays_both_modes_side_by_side(stepscope):
    short = shlex.split("--scale 0.001 --model lenet --data shapes --repeats 1")
    told = stepscope("lab", "scaling", *short, "--json").json
    assert told["holds"], told["answer"]
    assert [(row["processes"], row["batch_size"]) for row in told["rows"]] == [
        (1, 128),
        (2, 128),
        (1, 128),
        (2, 256),
    ]
    assert told["rows"] != told["scaling"]["measured"], "the table has words of its own"
    assert all(Path(stepscope.folder, plot).is_file() for plot in told["plots"])


@pytest.mark.long
def test_an_exchange_that_finds_no_memory_is_an_error_with_a_reason():
    with pytest.raises(MachineError, match=r"allreduce of 2 processes failed: .*memory"):
        ask_process(ALLREDUCE, {"processes": 2, "bytes": 10**18})


def a_row(mode: str, processes: int, speedup: float | None, **more: object) -> dict[str, object]:
    figures = {"samples_per_s": 640.0, "efficiency": 0.5, "communication_s": None, "rounds": 3}
    ends = {"low": None, "high": None, "reason": None}
    row = {"mode": mode, "processes": processes, "batch_size": 64, "speedup": speedup}
    return {**row, **figures, **ends, **more}


def test_what_is_predicted_is_drawn_and_printed_apart_and_a_failure_is_told(capsys):
    found = {
        "measured": [
            a_row("strong", 1, 1.0),
            a_row("strong", 2, 1.5, low=1.4, high=1.6, communication_s=0.01),
            a_row("weak", 1, 1.0),
            a_row("weak", 2, None, samples_per_s=None, efficiency=None, reason="out of memory"),
        ],
        "predicted": [a_row("strong", 4, 2.5, step_s=0.1, allreduce_s=0.02, blocking_s=0.01)],
        "assumed": {"bandwidth_bytes_per_s": 3.125e9, "latency_s": 0.0, "how": "as it is"},
        "notes": ["shared"],
        "answer": "So much.",
        "path": "runs/x",
    }
    chart = scale_chart(found)
    by_panel = {panel: [m for m in chart.marks if m.panel == panel] for panel in chart.panels()}
    assert [mark.x for mark in by_panel["predicted"] if mark.series == "strong"] == [4]
    assert [(m.y, m.low, m.high) for m in by_panel["measured"] if m.x == 2] == [
        (1.5, 1.4, 1.6),
        (2.0, None, None),
    ]
    assert scale_chart({**found, "predicted": []}).panels() == [""]
    print_scale(Console(width=120), found)
    printed = capsys.readouterr().out
    for words in ("1.40 to 1.60", "over 25 Gbit/s, no latency", "out of memory"):
        assert words in printed
    assert printed.index("1.40 to 1.60") < printed.index("Predicted") < printed.index("So much.")
