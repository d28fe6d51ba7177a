"""A real run on the tree of a board whose clock limit falls while it trains, and is killed then."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from machine_trees import JETSON_NANO, write_tree
from polling import wait_until
from stepscope_command import ENVIRONMENT, Stepscope

from stepscope.records.run_folder import RunFolder
from stepscope.records.run_reader import Run, load_run

FULL_KHZ, LOWERED_KHZ = 1_479_000, 918_000
# Slow enough that the machine is looked at several times in some epochs.
SLOW = ("--samples", 320, "--batch-size", 32, "--pipeline-delay-ms", 1, "--out", "runs")
OFTEN = {
    "stepscope.telemetry.telemetry_sampler.READ_EVERY_S": 0.05,
    "stepscope.telemetry.telemetry_sampler._SAMPLE_EVERY_S": 0.05,
    "stepscope.telemetry.telemetry_sampler._SAMPLE_SLOWLY_EVERY_S": 0.05,
}
LOOKS_OFTEN = f"""
from unittest import mock
for name, often_s in {OFTEN}.items():
    mock.patch(name, often_s).start()
from stepscope.cli.main import main
main()
"""


def limit_clocks(root: Path, khz: int) -> None:
    for file in root.glob("sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq"):
        replacement = file.with_suffix(".new")
        replacement.write_text(f"{khz}\n")
        replacement.replace(file)


def wait_for(runs: Path, seen: Callable[[Run], bool]) -> None:
    latest = runs / "latest"
    wait_until(lambda: latest.exists() and seen(load_run(latest)), every_s=0.1)


def is_throttled(run: Run) -> bool:
    return any(event["event"] == "throttling" for event in run.events)


def test_a_run_killed_while_its_clock_is_held_down_is_marked_until_its_end_and_resumed_no_further(
    stepscope: Stepscope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, runs = write_tree(JETSON_NANO, tmp_path), stepscope.folder / "runs"
    environment = {"STEPSCOPE_SYSTEM_ROOT": str(root)}
    for name, often_s in OFTEN.items():
        monkeypatch.setattr(name, often_s)
    running = subprocess.Popen(
        [sys.executable, "-c", LOOKS_OFTEN, "run", *map(str, SLOW), "--epochs", "20"],
        cwd=stepscope.folder,
        env={**ENVIRONMENT, **environment},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(runs, lambda run: len(run.steps) > 5)
        limit_clocks(root, LOWERED_KHZ)
        wait_for(runs, is_throttled)
        epochs = len(load_run(runs / "latest").epochs)
        wait_for(runs, lambda run: len(run.epochs) >= epochs + 3)  # a checkpoint keeps some
    finally:
        running.kill()
        running.wait()
    killed = load_run(runs / "latest")
    assert (killed.throttled[0], killed.throttled[-1]) == (False, True)
    limit_clocks(root, FULL_KHZ)
    RunFolder(killed.path).update_info(spec={**killed.spec, "pipeline_delay_ms": 0})

    resumed = stepscope("resume", "runs/latest", "--json", env=environment)
    assert resumed.code == 0, resumed.err
    run = load_run(runs / "latest")
    (again,) = (event for event in run.events if event["event"] == "resume")
    marked = [
        start_s for start_s, mark in zip(run.steps["start_s"], run.throttled, strict=True) if mark
    ]
    assert marked
    assert max(marked) <= again["time_s"]
    found = run.summary["throttling"]
    assert found["steps"] == len(marked) < len(run.steps)
    assert found["ranges"]
    assert found["watched"] == ["temperature", "clock limit", "clock"]
    assert "the machine held itself back (throttling)" in (run.path / "report.html").read_text()
