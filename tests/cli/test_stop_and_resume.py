"""Stopped politely, killed outright, and resumed: nothing that was recorded is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from polling import wait_until
from stepscope_command import Stepscope, closes, steps_on_disk

from stepscope.records.run_reader import Run, load_run

# A training that can be caught in the middle: from its second epoch on steps take long, while there
# is a file `slow`.
SLOW = """
import time
from pathlib import Path
from torch import nn

class Slow(nn.Linear):
    steps = 0

    def forward(self, x):
        self.steps += self.training
        if self.steps > 45 and Path("slow").exists():
            time.sleep(0.25)
        return super().forward(x.flatten(1))

def net():
    return Slow(3072, 10)
"""
RUN = ("run", "--model", "slow:net", "--samples", 320, "--batch-size", 8, "--epochs", 3)
STEPS = 3 * 40


@pytest.fixture
def slow(stepscope: Stepscope) -> Path:
    """The file that makes a training slow."""
    (stepscope.folder / "slow.py").write_text(SLOW)
    (stepscope.folder / "slow").touch()
    return stepscope.folder / "slow"


def in_its_second_epoch(stepscope, *args, **options) -> subprocess.Popen[str]:
    process = stepscope.start(*RUN, *args, **options)
    wait_until(lambda: steps_on_disk(stepscope.folder) > 40 or process.poll())
    assert process.poll() is None, process.communicate()
    return process


def training_of(parent: subprocess.Popen[str]) -> psutil.Process:
    """Return the training that a process supervises, which is the youngest of its children."""
    return max(psutil.Process(parent.pid).children(), key=psutil.Process.create_time)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    stepscope = Stepscope(tmp_path_factory.mktemp("whole"))
    (stepscope.folder / "slow.py").write_text(SLOW)
    found = stepscope.succeed(*RUN, "--json").json
    return load_run(stepscope.folder / found["path"])


# SIGHUP is sent in `test_surroundings`, SIGTERM in `test_distributed_runs`.
def test_an_interrupted_run_goes_on_later_as_if_nothing_was(stepscope, slow, uninterrupted):
    process = in_its_second_epoch(stepscope, "--json")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    slow.unlink()
    assert process.returncode == 130, err
    info = json.loads(out)
    assert info["status"] == "interrupted"
    assert "stepscope resume" in err
    assert (stepscope.folder / info["path"] / "checkpoint.pt").exists()
    assert steps_on_disk(stepscope.folder) < STEPS
    found = stepscope.succeed("resume", info["path"], "--json").json
    resumed = load_run(stepscope.folder / found["path"])
    assert resumed.status == "completed"
    assert resumed.steps["loss"] == uninterrupted.steps["loss"]
    assert resumed.epochs["accuracy"] == uninterrupted.epochs["accuracy"]
    assert closes(resumed, within=0.01)
    starts = resumed.steps["start_s"]
    assert starts == sorted(starts), "the run's clock goes on, it does not begin again"


def test_two_signals_end_it_at_once(stepscope, slow):
    (stepscope.folder / "slow.py").write_text(
        SLOW.replace("0.25", "600 * bool(Path('asleep').write_text(' '))")
    )
    process = stepscope.start(*RUN, "--json")
    wait_until((stepscope.folder / "asleep").exists)
    process.send_signal(signal.SIGINT)
    assert any(line.startswith("stopping after this step") for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["status"] == "interrupted"


def kill_when(condition, stepscope) -> None:
    process = stepscope.start(*RUN)
    wait_until(lambda: condition() or process.poll())
    below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(lives, below)))


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE  # whoever is its parent now is slow
    return False


def every_run(stepscope) -> list[Run]:
    folders = (stepscope.folder / "runs").iterdir()
    return [load_run(each) for each in folders if each.name != "latest" and each.name[0] != "."]


def test_killed_at_any_moment_a_folder_reads_and_no_training_outlives_it(stepscope, slow):
    runs = stepscope.folder / "runs"
    moments = [runs.exists, (runs / "latest").exists, lambda: steps_on_disk(stepscope.folder) > 0]
    for moment in moments:
        shutil.rmtree(runs, ignore_errors=True)
        kill_when(moment, stepscope)
        for run in every_run(stepscope):
            assert len(run.steps) >= 0
            assert run.status == "running"


@pytest.mark.long
def test_twenty_runs_killed_at_random_read_and_one_resumed_equals_the_whole(
    stepscope, slow, uninterrupted
):
    chance = random.Random(0)
    for _ in range(20):
        moment = time.monotonic() + chance.uniform(0.1, 5)
        kill_when(lambda moment=moment: time.monotonic() > moment, stepscope)
    slow.unlink()
    runs = every_run(stepscope)
    for run in runs:
        assert len(run.steps) >= 0
        assert len(run.epochs) >= 0
        assert len(run.telemetry) >= 0
        assert run.status == "running"
    furthest = max(runs, key=lambda run: len(run.steps))
    stepscope.succeed("resume", furthest.path, "--json")
    assert load_run(furthest.path).steps["loss"] == uninterrupted.steps["loss"]


def test_a_run_that_is_alive_is_not_resumed_and_one_whose_training_was_killed_is(
    stepscope, slow, uninterrupted
):
    process = in_its_second_epoch(stepscope, "--json")
    refused = stepscope("resume", "runs/latest")
    assert refused.code == 2
    assert "still running" in refused.err
    training_of(process).kill()
    out, _ = process.communicate(timeout=60)
    slow.unlink()
    info = json.loads(out)
    assert process.returncode == 70
    assert info["status"] == "failed"
    assert "SIGKILL" in info["reason"]
    assert info["summary"]["steps"] > 40
    answer = stepscope("resume", info["path"], "--json")
    assert answer.json["status"] == "completed"
    assert load_run(stepscope.folder / info["path"]).steps["loss"] == uninterrupted.steps["loss"]


def test_a_completed_run_is_left_as_it_is(uninterrupted):
    stepscope = Stepscope(uninterrupted.path.parents[1])
    before = {file.name: file.read_bytes() for file in uninterrupted.path.iterdir()}
    answer = stepscope("resume", uninterrupted.path, "--json")
    assert answer.code == 0
    assert answer.json["status"] == "completed"
    assert {file.name: file.read_bytes() for file in uninterrupted.path.iterdir()} == before


def test_ctrl_z_pauses_the_training_too(stepscope, slow):
    process = in_its_second_epoch(stepscope, start_new_session=True)
    try:
        training = training_of(process)
        os.kill(process.pid, signal.SIGTSTP)
        # Who supervises stops after it: what is told to go on before it has stopped, does not.
        for paused in (training, psutil.Process(process.pid)):
            wait_until(lambda paused=paused: paused.status() == psutil.STATUS_STOPPED)
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: training.status() != psutil.STATUS_STOPPED)
    finally:
        process.kill()
        process.communicate()


def test_without_a_checkpoint_a_run_begins_again_and_of_two_that_resume_it_one_is_refused(
    stepscope, slow, uninterrupted
):
    path = shutil.copytree(uninterrupted.path, stepscope.folder / "runs" / "interrupted")
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**info, "status": "interrupted"}))
    (path / "checkpoint.pt").unlink()
    both = [stepscope.start("resume", path) for _ in range(2)]
    wait_until(lambda: any(process.poll() is not None for process in both))
    slow.unlink()
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], errors
    assert any("still running" in error for error in errors)
    assert load_run(path).steps["loss"] == uninterrupted.steps["loss"]
