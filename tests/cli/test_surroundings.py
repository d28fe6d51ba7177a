"""What goes on around a run must not bring it down: streams, terminals, folders, processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time

import psutil
import pytest
from as_a_person import ENVIRONMENT, TINY, Stepscope

from stepscope.records.reader import load_run


def through_a_shell(stepscope, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        cwd=stepscope.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**ENVIRONMENT, **environment},
    )


@pytest.fixture
def command(stepscope, tiny) -> str:
    return " ".join(stepscope.command("run", *tiny))


@pytest.mark.parametrize(
    "redirection",
    ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full", "2>&1 >/dev/null | head -1"],
)
def test_a_run_completes_whatever_becomes_of_its_messages(stepscope, command, redirection):
    through_a_shell(stepscope, f"{command} {redirection}")
    assert load_run(stepscope.folder / "runs" / "latest").status == "completed"


def test_a_reader_that_has_seen_enough_is_no_failure(stepscope, command):
    done = through_a_shell(stepscope, f"set -o pipefail; {command} | head -1")
    assert done.returncode == 0, done.stderr


def test_with_standard_error_closed_json_is_still_one_object(stepscope, command):
    done = through_a_shell(stepscope, f"{command} --json 2>&-")
    assert done.stdout.startswith("{")
    assert done.stdout.count("\n") == 1


def test_output_that_cannot_be_written_is_a_full_disk(stepscope, command):
    done = through_a_shell(stepscope, f"{command} --json > /dev/full")
    assert done.returncode == 5
    assert "standard output" in done.stderr
    assert "Traceback" not in done.stderr


def test_letters_that_the_terminal_lacks_are_replaced(stepscope, command):
    done = through_a_shell(stepscope, command, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr


def test_nohup_means_it(stepscope, command):
    process = subprocess.Popen(
        ["bash", "-c", f"trap '' HUP; exec {command}"], cwd=stepscope.folder, env=ENVIRONMENT
    )
    time.sleep(1.5)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 0


def test_a_lost_terminal_interrupts_the_run_and_keeps_its_checkpoint(stepscope):
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        stepscope.command("run", "--samples", 2000, "--batch-size", 4, "--epochs", 50),
        cwd=stepscope.folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=ENVIRONMENT,
    )
    os.close(theirs)
    steps = stepscope.folder / "runs" / "latest" / "steps.csv"
    deadline = time.monotonic() + 60
    while not (steps.exists() and steps.read_text().count("\n") > 10):
        assert time.monotonic() < deadline
        os.set_blocking(ours, False)
        try:
            os.read(ours, 65536)
        except BlockingIOError:
            time.sleep(0.05)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 130
    run = load_run(stepscope.folder / "runs" / "latest")
    assert run.status == "interrupted"
    assert (run.path / "checkpoint.pt").exists()


OWN = """
import os, subprocess, threading, time
from torch import nn
def net(num_classes):
    {}
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))
"""


@pytest.mark.parametrize(
    "mischief",
    [
        "threading.Thread(target=time.sleep, args=(1e6,)).start()",
        "os.chdir('/')",
        "subprocess.Popen(['yes'])",
        "subprocess.Popen(['sleep', '987'])",
        "print('x' * 10**6)",
    ],
)
def test_a_model_that_misbehaves_still_trains_and_leaves_nothing_behind(stepscope, tiny, mischief):
    (stepscope.folder / "own.py").write_text(OWN.format(mischief))
    answer = stepscope("run", *tiny, "--model", "own:net", "--json")
    assert answer.code == 0, answer.err[-2000:]
    assert answer.json["status"] == "completed"
    left = [p.cmdline() for p in psutil.process_iter() if p.status() != psutil.STATUS_ZOMBIE]
    assert ["sleep", "987"] not in left


@pytest.fixture(scope="module")
def twelve_steps(tmp_path_factory):
    stepscope = Stepscope(tmp_path_factory.mktemp("whole"))
    return stepscope.folder / stepscope("run", *TINY, "--max-steps", 12, "--json").json["path"]


@pytest.mark.parametrize(
    "file", ["steps.csv", "epochs.csv", "records.csv", "telemetry.csv", "energy.csv"]
)
def test_a_table_that_is_gone_is_named_or_put_back(stepscope, twelve_steps, file):
    path = shutil.copytree(twelve_steps, stepscope.folder / "runs" / twelve_steps.name)
    info = (path / "run.json").read_text()
    (path / "run.json").write_text(info.replace('"completed"', '"interrupted"'))
    (path / file).unlink()
    answer = stepscope("resume", path)
    if file in ("telemetry.csv", "energy.csv"):
        assert answer.code == 0, answer.err
    else:
        assert answer.code == 3
        assert file in answer.err
    (path / "checkpoint.pt").unlink()
    (path / "run.json").write_text(info.replace('"completed"', '"failed"'))
    assert stepscope("resume", path).code == 0
    assert len(load_run(path).steps) == 12
