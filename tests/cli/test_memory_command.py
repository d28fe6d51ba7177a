"""`stepscope memory` from outside, and what a run makes of its own forecast."""

from __future__ import annotations

from typing import Any

import pytest
from stepscope_command import Stepscope

MIB = 2**20
ITEMS = (
    *("runtime", "device_context", "parameters", "gradients", "optimizer_state", "activations"),
    *("batch", "prefetch", "workers", "dataset", "workspace", "slack"),
)
WIDE = """\
from torch import nn

def wide():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )

def fails():
    return nn.Linear(7, 10)

class Fickle(nn.Linear):
    def forward(self, x):
        if len(x) == 3:
            x = x * 1
        return super().forward(x.flatten(1))

def fickle():
    return Fickle(3 * 32 * 32, 10)
"""


def test_the_bill_adds_up_and_says_how_each_item_was_got(stepscope):
    answer = stepscope("memory", "lenet", "--batch-size", 128, "--workers", 1, "--json")
    bill = answer.json
    assert answer.code == 0, answer.err
    assert tuple(bill["items"]) == ITEMS
    assert sum(item["bytes"] for item in bill["items"].values()) == bill["total_bytes"]
    assert {item["how"] for item in bill["items"].values()} <= {"counted", "measured", "calibrated"}
    assert bill["fits"] is True
    assert bill["limit_bytes"] > bill["total_bytes"]
    assert bill["items"]["parameters"]["bytes"] == 62_006 * 4
    assert bill["items"]["gradients"]["bytes"] == 62_006 * 4
    assert bill["items"]["optimizer_state"]["bytes"] == 62_006 * 4  # momentum
    assert bill["items"]["batch"]["bytes"] == 128 * (3 * 32 * 32 * 4 + 8)
    assert bill["items"]["workers"]["bytes"] > MIB
    adam = stepscope("memory", "lenet", "--optimizer", "adam", "--json").json
    assert adam["items"]["optimizer_state"]["bytes"] == 2 * 62_006 * 4


def test_a_run_ends_near_what_was_forecast(stepscope):
    flags = ("--batch-size", 16, "--samples", 32, "--epochs", 1, "--no-evaluate", "--json")
    forecast = stepscope("memory", "resnet18", *flags).json["total_bytes"]
    run = stepscope("run", "--model", "resnet18", *flags).json
    bill = run["summary"]["memory_bill"]
    peak = run["summary"]["peak_memory_bytes"]
    assert forecast == pytest.approx(peak, rel=0.1)  # a loaded machine; the benchmark says 5 %
    assert bill["total_bytes"] == pytest.approx(forecast, rel=0.05)
    assert abs(bill["unexplained_share"]) <= 0.1
    assert bill["peak_memory_bytes"] == peak
    assert bill["items"]["dataset"]["measured_bytes"] is not None


def test_the_table_is_for_people(stepscope):
    answer = stepscope("memory", "lenet")
    assert answer.code == 0
    for word in ("runtime", "activations", "calibrated", "total", "backward", "Fits"):
        assert word in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


def test_a_batch_that_no_memory_holds_is_answered_with_what_would_help(stepscope):
    (stepscope.folder / "nets.py").write_text(WIDE)
    answer = stepscope(
        *("memory", "nets:wide", "--batch-size", 20_000, "--memory-limit", "1GiB", "--json")
    )
    bill = answer.json
    assert answer.code == 1
    assert bill["fits"] is False
    assert bill["limit_of"] == "--memory-limit"
    fitting = [remedy for remedy in bill["remedies"] if remedy["fits"]]
    assert fitting
    assert all(remedy["total_bytes"] <= bill["limit_bytes"] for remedy in fitting)


@pytest.mark.parametrize(
    ("model", "code", "word"),
    [("nets:fails", 2, "fails on images"), ("resnet81", 2, "resnet"), ("nets:fickle", 1, "three")],
)
def test_what_cannot_be_forecast_is_refused_with_the_reason(stepscope, model, code, word):
    (stepscope.folder / "nets.py").write_text(WIDE)
    answer = stepscope("memory", model, "--json")
    assert answer.code == code
    assert word in answer.err
    assert "Traceback" not in answer.err


def refused(stepscope: Stepscope, *flags: object) -> dict[str, Any]:
    (stepscope.folder / "nets.py").write_text(WIDE)
    asked = ("--model", "nets:wide", "--batch-size", 4000, "--memory-limit", "1GiB")
    answer = stepscope("run", *asked, "--samples", 8000, *flags, "--json")
    assert answer.code == 4, answer.err
    run = answer.json
    assert run["status"] == "out_of_memory"
    assert run["summary"]["memory_bill"]["fits"] is False
    return run


def test_a_run_that_is_forecast_not_to_fit_is_not_started(stepscope):
    run = refused(stepscope)
    assert run["summary"]["steps"] == 0
    assert "--batch-size" in run["reason"]
    assert "--accumulate" in run["reason"]
    assert run["summary"]["peak_memory_bytes"] < 2**30


def test_a_forced_run_is_ended_at_its_limit_and_leaves_a_whole_folder(stepscope):
    run = refused(stepscope, "--force")
    assert "limit" in run["reason"]
    events = (stepscope.folder / "runs" / "latest" / "events.jsonl").read_text()
    assert "memory_guard" in events
