"""Runs whose device is scripted, from the training process to the closed folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from rich.console import Console
from scripted_device_memory import MIB, ScriptedMemory

from stepscope.experiments import max_batch_trials
from stepscope.hardware.cgroup import ControlGroup
from stepscope.memory_forecast.fit_check import check_fit
from stepscope.memory_forecast.memory_bill import Limit
from stepscope.meter.clock import now_ns
from stepscope.records import run_folder
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_reader import Run, load_run
from stepscope.report.charts.run_charts import bill_waterfalls, memory_by_time
from stepscope.report.terminal.run_tables import about_forecast, print_bill
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import validate
from stepscope.supervisor import start_run
from stepscope.supervisor.child_supervisor import SilentListener
from stepscope.supervisor.memory_guard import MemoryLimit, MemoryWatch
from stepscope.supervisor.run_lifecycle import run_to_end
from stepscope.supervisor.train_child import TrainingProcess
from stepscope.supervisor.warm_start import ChildProcess, ForkServer
from stepscope.telemetry.telemetry_sampler import Sampler
from stepscope.train.device import resolve
from stepscope.train.training_setup import build_model

CHILD = "scripted_device_memory"
GREEDY = """\
import torch
from torch import nn

class Greedy(nn.Sequential):
    def forward(self, x):
        if len(x) > 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return super().forward(x)

def greedy():
    return Greedy(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
"""


def run_on(out: Path, device: dict[str, Any], **settings: Any) -> Run:
    """Run in a folder as `stepscope run` does, in a child whose device is scripted."""
    asked = {"samples": 320, "batch_size": 32, "epochs": 1, "device": "cpu", **settings}
    spec = validate({**asked, "threads": 1, "out": str(out)})
    made = run_folder.create(out, "run", "run", spec.model_dump(mode="json"))
    run_to_end(made, OnScriptedDevice(folder=made, device=device), SilentListener())
    return load_run(made.path)


@dataclass(frozen=True, kw_only=True)
class OnScriptedDevice(TrainingProcess):
    """A training that starts as it would, but with a scripted device."""

    device: dict[str, Any]

    def start(self, messages: int, origin_ns: int) -> ChildProcess:
        numbers = map(str, (self.folder.path, messages, os.getpid(), origin_ns))
        arguments = [*numbers, self.options.to_json()]
        environment = {**os.environ, "SCRIPTED_DEVICE": json.dumps(self.device)}
        forked = ForkServer().fork(CHILD, arguments, environment, pass_fds=[messages])
        return forked or subprocess.Popen(
            [sys.executable, "-m", CHILD, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[messages],
            start_new_session=True,
            env={**environment, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")},
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    done = run_on(tmp_path_factory.mktemp("runs"), {})
    assert done.status == "completed", done.info["reason"]
    return done


def test_the_devices_peak_stands_beside_the_hosts_and_the_bill_compares_each_pool(run: Run) -> None:
    assert run.summary["device_peak_memory_bytes"] == 365 * MIB  # 64 and 1 reserved, 300 context
    assert "device_peak_memory_bytes" not in run.summary["absent"]
    bill = run.summary["memory_bill"]
    peaks = {name: pool["peak_bytes"] for name, pool in bill["pools"].items()}
    assert peaks == {"host": run.summary["peak_memory_bytes"], "device": 365 * MIB}
    assert peaks["host"] > 0
    assert bill["items"]["device_context"]["measured_bytes"] == 300 * MIB
    assert all("unexplained_share" in pool for pool in bill["pools"].values())


def test_table_line_and_charts_show_the_pools(run: Run) -> None:
    bill = run.summary["memory_bill"]
    console = Console(record=True, width=100, file=StringIO())
    print_bill(console, bill)
    words = console.export_text()
    assert all(word in words for word in ("pool", "total, host", "total, device"))
    assert about_forecast(bill).startswith("memory forecast: host ")
    assert "; device 3" in about_forecast(bill)
    titles = [chart.title for chart in bill_waterfalls(bill)]
    assert titles == ["Memory bill, host", "Memory bill, device"]
    last = [chart.marks[-1] for chart in bill_waterfalls(bill)]
    assert [mark.x for mark in last] == ["peak", "peak"]
    assert last[1].y == pytest.approx(365)


def test_a_training_that_is_killed_has_the_peak_that_it_told_last(tmp_path: Path) -> None:
    made = run_folder.create(tmp_path, "killed", "run", {"device": "cuda"})
    told = [{"type": "device_memory", "bytes": size, "unified": False} for size in (70, 90, 80)]
    dies = (
        "import os, sys; os.write(int(sys.argv[1]), sys.argv[2].encode()); os.kill(os.getpid(), 9)"
    )
    lines = "".join(json.dumps(message) + "\n" for message in told)

    class Killed(TrainingProcess):
        def start(self, messages: int, origin_ns: int) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-c", dies, str(messages), lines]
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, pass_fds=[messages], start_new_session=True
            )

    assert run_to_end(made, Killed(folder=made), SilentListener()).exit_code != 0
    killed = load_run(made.path)
    assert killed.summary["device_peak_memory_bytes"] == 90


def test_telemetry_has_what_the_training_told_last_and_the_chart_shows_it(tmp_path: Path) -> None:
    made = run_folder.create(tmp_path, "told", "run", {})
    with CsvLog(made.path / "telemetry.csv") as log:
        sampler = Sampler(psutil.Process(), log, now_ns())
        sampler.sample()
        sampler.report_device_memory(5 * MIB)
        sampler.report_device_memory(3 * MIB)
        sampler.sample()
    run = load_run(made.path)
    assert list(run.telemetry["device_memory_bytes"]) == [None, 3 * MIB]
    assert sampler.peak_device_memory_bytes == 5 * MIB
    assert {mark.series for mark in memory_by_time([("", run)]).marks} == {"host", "device"}


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("in_group", [False, True])
def test_the_guard_counts_what_is_held_of_a_device_that_shares_the_hosts_memory(
    tmp_path: Path, unified: bool, in_group: bool
) -> None:
    made = run_folder.create(tmp_path, "guarded", "run", {})
    with CsvLog(made.path / "telemetry.csv") as log:
        sampler = Sampler(psutil.Process(), log, now_ns())
        sampler.report_device_memory(100_000 * MIB)
        guard = MemoryWatch(made, None, sampler, print, may_end=False)  # type: ignore[arg-type]
        if in_group:
            (tmp_path / "memory.current").write_text(f"{200 * MIB}\n")
            guard.limit = MemoryLimit(400 * MIB, ControlGroup(tmp_path))
        guard.unified = unified
        guard.check()
    assert (guard.seen.used_bytes > 100_000 * MIB) is unified
    assert guard.seen.used_bytes > 0


def test_a_run_that_its_device_does_not_hold_is_not_started(tmp_path: Path) -> None:
    refused = run_on(tmp_path, {"room_bytes": 340 * MIB})
    assert refused.status == "out_of_memory"
    assert refused.summary["steps"] == 0
    assert "340.0 MiB (memory of cpu)" in refused.info["reason"]
    assert refused.summary["device_peak_memory_bytes"] is None


def test_an_error_of_torch_that_a_device_is_full_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(GREEDY)
    died = run_on(tmp_path, {"room_bytes": 500 * MIB}, model="nets:greedy")
    assert died.status == "out_of_memory"
    assert "CUDA out of memory" in died.info["reason"]
    assert "--batch-size" in died.info["reason"]
    assert died.summary["device_peak_memory_bytes"] == 365 * MIB


def bill_on(device: dict[str, Any], spec: RunSpec) -> dict[str, Any]:
    """Forecast a run as `stepscope memory` does, on a scripted device."""
    spec = resolve(spec)
    return check_fit(spec, build_model(spec), ScriptedMemory(**device)).to_json()


@pytest.mark.parametrize(
    ("device", "host", "pool", "limit"),
    [
        ({"room_bytes": 600 * MIB}, "64GiB", "device", Limit("memory of cpu", 600 * MIB)),
        ({"room_bytes": 4096 * MIB}, "2GiB", "device", Limit("memory of cpu", 4096 * MIB)),
        ({}, "100MiB", "host", Limit("asked for", 100 * MIB)),
        ({"unified": True}, "900MiB", "unified", Limit("asked for", 900 * MIB)),
        (
            {"unified": True, "room_bytes": 700 * MIB},
            "900MiB",
            "unified",
            Limit("memory of cpu", 700 * MIB),
        ),
    ],
)
def test_the_pool_that_is_full_first_has_its_own_line_and_limit(
    device: dict[str, Any], host: str, pool: str, limit: Limit
) -> None:
    spec = validate({"batch_size": 2, "device": "cpu", "memory_limit": host})
    assert spec.memory_limit is not None
    bill = bill_on(device, spec)
    full = max_batch_trials.first_full(bill, 2, Limit("asked for", spec.memory_limit))
    assert (full.pool, full.limit) == (pool, limit)
    needed_bytes = bill["limits"][pool]["needed_bytes"]
    if host == "2GiB":
        assert bill["limit_pool"] == "host", "of so few samples it is still the fuller pool"
    assert full.line.base_bytes + 2 * full.line.sample_bytes == pytest.approx(needed_bytes)


def test_fit_holds_the_devices_peak_against_the_devices_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = {"room_bytes": 390 * MIB}
    monkeypatch.setattr(
        max_batch_trials, "forecast", lambda spec, fork_server: bill_on(device, spec)
    )
    monkeypatch.setattr(
        start_run,
        "TrainingProcess",
        lambda **named: OnScriptedDevice(**named, device=device),
    )
    asked = {"samples": 64, "batch_size": 16, "threads": 1, "device": "cpu", "out": str(tmp_path)}
    found = max_batch_trials.fit(validate(asked), Mock(), asked=True).to_json()
    assert (found["limit_pool"], found["limit_of"]) == ("device", "memory of cpu")
    assert found["limit_bytes"] == 390 * MIB
    (tried,) = found["trials"]  # 94 % are full: there is no room for more
    assert (tried["fits"], tried["peak_memory_bytes"]) == (True, 365 * MIB)
    bill = bill_on(device, validate(asked))
    needed_bytes = bill["limits"]["device"]["needed_bytes"]
    assert tried["forecast_bytes"] == pytest.approx(needed_bytes, rel=0.05)
