"""Stopped politely, killed outright, and resumed: nothing that was recorded is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from as_a_person import Stepscope, closes

from stepscope.records.reader import load_run

LONG = ("--samples", 1600, "--batch-size", 8, "--epochs", 3, "--out", "runs")


def wait_for(condition, what: str, seconds: float = 240):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    pytest.fail(f"waited {seconds} s in vain for {what}")


def steps_on_disk(folder: Path) -> int:
    file = folder / "runs" / "latest" / "steps.csv"
    return file.read_text().count("\n") - 1 if file.exists() else 0


def training_of(parent: subprocess.Popen[str]) -> psutil.Process | None:
    children = psutil.Process(parent.pid).children()
    return children[0] if children else None


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    stepscope = Stepscope(tmp_path_factory.mktemp("whole"))
    answer = stepscope("run", *LONG, "--json")
    assert answer.code == 0, answer.err
    return load_run(stepscope.folder / answer.json["path"])


def interrupted_by(number: signal.Signals, stepscope) -> str:
    """Stop a run in its first steps, and return its path."""
    process = stepscope.start("run", *LONG, "--json")
    wait_for(lambda: steps_on_disk(stepscope.folder) > 10, "some steps")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    info = json.loads(out)
    assert info["status"] == "interrupted"
    assert "stepscope resume" in err
    assert (stepscope.folder / info["path"] / "checkpoint.pt").exists()
    return info["path"]


# To the training all of them are one and the same request: what comes of it is looked at once.
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_step_and_keeps_a_checkpoint(stepscope, number):
    assert interrupted_by(number, stepscope)


def test_an_interrupted_run_goes_on_later_as_if_nothing_was(stepscope, uninterrupted):
    path = interrupted_by(signal.SIGINT, stepscope)
    answer = stepscope("resume", path, "--json")
    assert answer.code == 0, answer.err
    resumed = load_run(stepscope.folder / answer.json["path"])
    assert resumed.status == "completed"
    assert resumed.steps["loss"] == uninterrupted.steps["loss"]
    assert resumed.epochs["accuracy"] == uninterrupted.epochs["accuracy"]
    assert closes(resumed, within=0.01)
    starts = resumed.steps["start_s"]
    assert starts == sorted(starts), "the run's clock goes on, it does not begin again"


def test_two_signals_end_it_at_once(stepscope):
    (stepscope.folder / "slow.py").write_text(
        "import time\n"
        "from torch import nn\n"
        "class Slow(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if self.training and len(x) > 16:  # not when it looks ahead\n"
        "            time.sleep(120)\n"
        "        return super().forward(x.flatten(1))\n"
        "def net():\n"
        "    return Slow(3072, 10)\n"
    )
    process = stepscope.start("run", *LONG, "--batch-size", 32, "--model", "slow:net", "--json")
    events = stepscope.folder / "runs" / "latest" / "events.jsonl"
    wait_for(lambda: events.exists() and "checkpoint" in events.read_text(), "the first test")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(out)["status"] == "interrupted"


def kill_at(stepscope, seconds: float) -> None:
    process = stepscope.start("run", *LONG, start_new_session=True)
    time.sleep(seconds)
    training = None
    if process.poll() is None:
        training = training_of(process)
        process.kill()
    process.communicate()
    if training is not None:
        wait_for(lambda: not training.is_running() or training.status() == "zombie", "its end")


def every_folder(stepscope) -> list[Path]:
    runs = stepscope.folder / "runs"
    return [path for path in runs.iterdir() if path.name != "latest"] if runs.exists() else []


def test_killed_at_any_moment_a_folder_reads_and_no_training_outlives_it(stepscope):
    for seconds in (0.3, 1.5, 3.0):
        kill_at(stepscope, seconds)
    for folder in every_folder(stepscope):
        if not folder.name.startswith(".new-"):
            run = load_run(folder)
            assert len(run.steps) >= 0
            assert run.status in ("running", "completed")


@pytest.mark.long
def test_twenty_runs_killed_at_random_read_and_one_resumed_equals_the_whole(
    stepscope, uninterrupted
):
    chance = random.Random(0)
    for _ in range(20):
        kill_at(stepscope, chance.uniform(0.1, 8))
    runs = [load_run(folder) for folder in every_folder(stepscope) if folder.name[0] != "."]
    assert len(runs) >= 15
    for run in runs:
        assert len(run.steps) >= 0
        assert len(run.epochs) >= 0
        assert len(run.telemetry) >= 0
    under_way = [run for run in runs if run.status == "running"]
    furthest = max(under_way, key=lambda run: len(run.steps))
    answer = stepscope("resume", furthest.path, "--json")
    assert answer.code == 0, answer.err
    assert load_run(furthest.path).steps["loss"] == uninterrupted.steps["loss"]


def test_a_training_killed_outright_is_recorded_and_can_be_resumed(stepscope, uninterrupted):
    process = stepscope.start("run", *LONG, "--json")
    wait_for(lambda: steps_on_disk(stepscope.folder) > 220, "the second epoch")
    training = training_of(process)
    assert training is not None
    training.kill()
    out, _ = process.communicate(timeout=60)
    info = json.loads(out)
    assert process.returncode == 70
    assert info["status"] == "failed"
    assert "SIGKILL" in info["reason"]
    assert info["summary"]["steps"] > 200
    answer = stepscope("resume", info["path"], "--json")
    assert answer.json["status"] == "completed"
    assert load_run(stepscope.folder / info["path"]).steps["loss"] == uninterrupted.steps["loss"]


def test_a_completed_run_is_left_as_it_is(stepscope, tiny):
    path = stepscope.folder / stepscope("run", *tiny, "--json").json["path"]
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    answer = stepscope("resume", path, "--json")
    assert answer.code == 0
    assert answer.json["status"] == "completed"
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_a_run_that_is_alive_is_not_resumed(stepscope):
    process = stepscope.start("run", *LONG)
    try:
        wait_for(lambda: steps_on_disk(stepscope.folder) > 1, "some steps")
        answer = stepscope("resume", "runs/latest")
        assert answer.code == 2
        assert "still running" in answer.err
    finally:
        process.kill()
        process.communicate()


def test_without_a_checkpoint_a_run_begins_again(stepscope, tiny):
    path = stepscope.folder / stepscope("run", *tiny, "--max-steps", 5, "--json").json["path"]
    whole = load_run(path).steps["loss"]
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**info, "status": "interrupted"}))
    (path / "checkpoint.pt").unlink()
    assert stepscope("resume", path).code == 0
    assert load_run(path).steps["loss"] == whole


@pytest.mark.parametrize("what", ["nothing", "file", "empty folder"])
def test_what_is_no_run_folder_cannot_be_resumed(stepscope, what):
    target = stepscope.folder / "target"
    if what == "file":
        target.write_text("x")
    elif what == "empty folder":
        target.mkdir()
    answer = stepscope("resume", target)
    assert answer.code == 2
    assert "not a run folder" in answer.err


def test_ctrl_z_pauses_the_training_too(stepscope):
    process = stepscope.start("run", *LONG, start_new_session=True)
    try:
        wait_for(lambda: steps_on_disk(stepscope.folder) > 1, "some steps")
        training = training_of(process)
        os.kill(process.pid, signal.SIGTSTP)
        # Who supervises stops after it: what is told to go on before it has stopped, does not.
        for paused in (training, psutil.Process(process.pid)):
            wait_for(lambda paused=paused: paused.status() == psutil.STATUS_STOPPED, "a pause")
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: training.status() != psutil.STATUS_STOPPED, "the training to go on")
    finally:
        process.kill()
        process.communicate()


def test_of_two_that_resume_at_once_one_is_refused(stepscope):
    path = stepscope.folder / stepscope("run", *LONG, "--max-steps", 40, "--json").json["path"]
    info = json.loads((path / "run.json").read_text())
    info["status"] = "interrupted"
    info["spec"]["max_steps"] = 400
    (path / "run.json").write_text(json.dumps(info))
    (path / "checkpoint.pt").unlink()
    both = [stepscope.start("resume", path) for _ in range(2)]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    assert any("still running" in error for error in errors)
