"""What goes on around a run must not bring it down: streams, terminals, folders, processes."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import threading
from unittest import mock

import psutil
import pytest
from polling import wait_until
from stepscope_command import steps_on_disk

from stepscope.records.run_reader import load_run


@pytest.fixture
def command(stepscope, tiny) -> str:
    return " ".join(stepscope.command("run", *tiny, "--max-steps", 2))


@pytest.mark.parametrize(
    "redirection", ["<&- >&- 2>&-", "2>/dev/full | head -1", "2>&1 >/dev/null | head -1"]
)
def test_a_run_completes_whatever_becomes_of_its_messages(stepscope, command, redirection):
    done = stepscope.through_a_shell(f"{command} {redirection}")
    assert load_run(stepscope.folder / "runs" / "latest").status == "completed"
    assert done.returncode == 0, "a reader that has seen enough is no failure"


def test_with_standard_error_closed_json_is_still_one_object(stepscope, command):
    done = stepscope.through_a_shell(f"{command} --json 2>&-")
    assert done.stdout.startswith("{")
    assert done.stdout.count("\n") == 1
    assert load_run(stepscope.folder / "runs" / "latest").status == "completed"


def test_letters_that_the_terminal_lacks_are_replaced_and_nohup_means_it(stepscope, command):
    # The shell is told what to ignore; its process becomes the command, and is sent the signal.
    line = (
        f"trap '' HUP; (while kill -HUP $$; do sleep 0.05; done) >/dev/null 2>&1 & exec {command}"
    )
    done = stepscope.through_a_shell(line, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_a_lost_terminal_interrupts_the_run_and_keeps_its_checkpoint(stepscope):
    ours, theirs = os.openpty()
    endless = ("run", "--samples", 2000, "--batch-size", 4, "--epochs", 1000)
    process = stepscope.start(*endless, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.set_blocking(ours, False)

    def has_steps() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 65536)
        return steps_on_disk(stepscope.folder) > 10

    wait_until(has_steps)
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
    answer = stepscope("run", *tiny, "--max-steps", 2, "--model", "own:net", "--json")
    assert answer.code == 0, answer.err[-2000:]
    assert answer.json["status"] == "completed"
    # Another test's process may end at any moment: with names given, psutil leaves it out.
    left = [each.info for each in psutil.process_iter(["cmdline", "status"])]
    alive = [each["cmdline"] for each in left if each["status"] != psutil.STATUS_ZOMBIE]
    assert ["sleep", "987"] not in alive


def test_a_table_that_is_gone_is_made_again(stepscope, tiny):
    first = stepscope("run", *tiny, "--max-steps", 12, "--json").json
    path = stepscope.folder / first["path"]
    info = (path / "run.json").read_text()
    for file in ("steps.csv", "epochs.csv", "records.csv", "telemetry.csv"):
        (path / "run.json").write_text(info.replace('"completed"', '"interrupted"'))
        (path / file).unlink()
        answer = stepscope.succeed("resume", path)
        assert ("are missing" in answer.err) == (file != "telemetry.csv")
        assert len(load_run(path).steps) == 12
    (path / "run.json").write_text(info.replace('"completed"', '"failed"'))
    for file in (*path.glob("*.csv"), path / "checkpoint.pt"):
        file.unlink()
    assert stepscope("resume", path).code == 0, "from the beginning"
    assert len(load_run(path).steps) == 12


@pytest.mark.parametrize("removed", [False, True])
def test_a_run_folder_may_be_renamed_but_not_removed(stepscope, tiny, removed):
    def interfere() -> None:
        wait_until(lambda: steps_on_disk(stepscope.folder) > 0)
        path = (stepscope.folder / "runs" / "latest").resolve()
        if not removed:
            path.rename(path.with_name("renamed"))
        while path.exists():  # files may be made meanwhile
            shutil.rmtree(path, ignore_errors=True)

    thread = threading.Thread(target=interfere)
    thread.start()
    answer = stepscope("run", *tiny, "--epochs", 500, "--max-steps", 150, "--json")
    thread.join()
    assert "Traceback" not in answer.err
    assert answer.code == (5 if removed else 0), answer.err
    if removed:
        assert "run.json was removed while stepscope was writing" in answer.err
    else:
        assert answer.json["path"] == "runs/renamed" or answer.json["path"].endswith("/renamed")
        assert len(load_run(stepscope.folder / "runs" / "renamed").steps) == 150


def test_a_machine_that_starts_no_process_is_named(stepscope, tiny):
    full = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    with mock.patch("stepscope.supervisor.train_child.start_in_session", side_effect=full):
        answer = stepscope("run", *tiny)
    assert answer.is_refused(5, "no further process or thread can be started", "pids.max")
