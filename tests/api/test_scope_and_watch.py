"""`stepscope.Scope` and `stepscope.watch` in a person's own program."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
import torch
from scripted_device_memory import MIB, ScriptedMemory
from stepscope_command import closes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from stepscope.api import scope as scope_module
from stepscope.errors import RequestError
from stepscope.trace import tracer

SAMPLES, BATCH = 96, 8


@pytest.fixture
def training():
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(SAMPLES, 20), torch.randint(0, 4, (SAMPLES,)))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
    return data, model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_with(scope: stepscope.Scope, training, epochs: int = 2, accumulate: int = 1, **loader):
    data, model, optimizer = training
    batches = DataLoader(data, batch_size=BATCH, **loader)
    for _ in range(epochs):
        for number, (inputs, labels) in enumerate(scope.epoch(batches, accumulate=accumulate), 1):
            loss = nn.functional.cross_entropy(model(inputs), labels) / accumulate
            scope.lap("forward", loss)
            loss.backward()
            scope.lap("backward")
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            scope.lap("optimizer")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_of_ones_own_becomes_a_run(tmp_path, training, workers):
    with stepscope.Scope("mine", out=tmp_path, quiet=True) as scope:
        train_with(scope, training, num_workers=workers)
    run = stepscope.load_run(scope.path)
    assert (run.info["kind"], run.status) == ("trace", "completed")
    assert run.summary["steps"] == 2 * SAMPLES // BATCH
    assert run.summary["samples"] == 2 * SAMPLES
    assert closes(run)
    assert run.summary["phases"]["backward"]["total_s"] > 0
    assert len(run.steps["loss"]) == len(run.steps) == 2 * SAMPLES // BATCH
    assert None not in run.steps["loss"]
    assert [row["split"] for row in run.epochs.rows()] == ["train", "train"]
    assert (None in run.steps["load_s"]) is False
    assert set(run.steps["load_worker"]) == ({0, 1} if workers else {-1})
    assert run.info["instrument"]["overhead_per_step_s"] > 0
    assert 0 < run.info["instrument"]["beside_cpu_share"] < 1


def test_a_sampler_that_is_killed_takes_its_figures_with_it_and_nothing_else(tmp_path, training):
    with stepscope.Scope("mine", out=tmp_path, quiet=True) as scope:
        train_with(scope, training)
        for child in psutil.Process().children():
            if "stepscope.telemetry.sampler_process" in child.cmdline():
                child.kill()
    run = stepscope.load_run(scope.path)
    assert (run.status, run.summary["steps"]) == ("completed", 2 * SAMPLES // BATCH)
    assert run.summary["peak_memory_bytes"] is None
    assert "samples memory" in run.summary["absent"]["peak_memory_bytes"]
    assert run.info["instrument"]["beside_cpu_share"] is None


def test_several_batches_may_be_one_step(tmp_path, training):
    with stepscope.Scope("mine", out=tmp_path, quiet=True) as scope:
        train_with(scope, training, epochs=1, accumulate=5)
    run = stepscope.load_run(scope.path)
    assert run.steps["samples"] == [40, 40, 16], "the last step takes what is left"


def test_the_program_may_leave_the_folder_that_its_runs_are_in(tmp_path, training, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with stepscope.Scope("mine", out="runs", quiet=True) as scope:
        train_with(scope, training, epochs=1)
        monkeypatch.chdir(elsewhere)
    assert stepscope.load_run(scope.path).status == "completed"
    assert scope.path.parent == tmp_path / "runs"
    assert list(elsewhere.iterdir()) == []


def test_a_phase_that_does_not_exist_is_answered_with_the_nearest(tmp_path):
    scope = stepscope.Scope("mine", out=tmp_path, quiet=True)
    with pytest.raises(RequestError, match="forward"):
        scope.lap("foward")
    scope.close()


def test_a_loop_that_is_broken_off_leaves_an_epoch(tmp_path, training):
    data, _, _ = training
    with stepscope.Scope("mine", out=tmp_path, quiet=True) as scope:
        for number, _ in enumerate(scope.epoch(DataLoader(data, batch_size=BATCH))):
            if number == 3:
                break
    run = stepscope.load_run(scope.path)
    assert run.summary["steps"] == 4, "the one that was broken off counts: its batch was used"
    assert run.summary["epochs"] == 1


@pytest.mark.parametrize("profile", [stepscope.Scope, stepscope.watch])
def test_an_exception_ends_the_run_and_goes_on(tmp_path, profile):
    with pytest.raises(ZeroDivisionError), profile("mine", out=tmp_path, quiet=True):
        _ = 1 / 0
    run = stepscope.load_run(tmp_path / "latest")
    assert (run.status, run.info["reason"]) == ("failed", "ZeroDivisionError: division by zero")


def test_watching_finds_the_same_by_hooks_and_takes_them_off(tmp_path, training):
    data, model, optimizer = training
    called = nn.Module.__call__
    with stepscope.watch("hooks", out=tmp_path, layers=3, quiet=True) as path:
        assert nn.Module.__call__ is not called
        for _ in range(2):
            for inputs, labels in DataLoader(data, batch_size=BATCH, num_workers=1):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    assert nn.Module.__call__ is called
    run = stepscope.load_run(path)
    assert (run.status, run.summary["steps"]) == ("completed", 2 * SAMPLES // BATCH)
    assert closes(run)
    assert run.steps["detail"].count("layers") == 3
    assert {layer["kind"] for layer in run.summary["layers"]} >= {"Linear", "ReLU"}
    assert set(run.steps["load_worker"]) == {0}
    assert len(run.telemetry) >= 1


def test_what_was_held_of_a_device_is_in_the_summary(tmp_path, training, monkeypatch):
    for module in (scope_module, tracer):
        monkeypatch.setattr(module, "device_memory_of", lambda *asked: ScriptedMemory())
    with stepscope.Scope("mine", out=tmp_path, quiet=True) as scope:
        train_with(scope, training, epochs=1)
    with stepscope.watch(out=tmp_path, quiet=True) as watched:
        data, model, optimizer = training
        model(data[:BATCH][0]).sum().backward()
        optimizer.step()
    for path in (scope.path, watched):
        summary = stepscope.load_run(path).summary
        assert summary["device_peak_memory_bytes"] == 365 * MIB
        assert "device_peak_memory_bytes" not in summary["absent"]


def test_a_scope_that_nobody_closes_is_closed_with_its_program_and_says_how_that_ended(tmp_path):
    program = (
        "import os, stepscope, torch\n"
        "if os.fork() == 0:\n"
        f"    stepscope.Scope(out={str(tmp_path / 'dies')!r}, quiet=True)\n"
        "    1 / 0\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 1\n"
        f"scope = stepscope.Scope('mine', out={str(tmp_path)!r})\n"
        "for batch in scope.epoch([torch.zeros(4)] * 5):\n"
        "    scope.lap('forward')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert stepscope.load_run(tmp_path / "dies" / "latest").status == "failed"
    run = stepscope.load_run(tmp_path / "latest")
    assert (run.status, run.summary["steps"], run.summary["samples"]) == ("completed", 5, 20)
    assert "profiling overhead" in done.stderr
    assert done.stdout == ""


def test_batches_that_do_not_tell_their_samples_are_steps_all_the_same(tmp_path):
    with stepscope.Scope("words", out=tmp_path, quiet=True) as scope:
        for words in scope.epoch([["a", "b"], ["c"], ["d"]]):
            if words == ["d"]:
                break
    run = stepscope.load_run(scope.path)
    assert list(run.steps["samples"]) == [None] * 3
    assert list(run.epochs["samples"]) == [None]
    assert (run.summary["samples"], run.summary["samples_per_s"]) == (None, None)
