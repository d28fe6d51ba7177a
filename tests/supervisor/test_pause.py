"""A pause reaches every process of a training, whatever session it is in."""

from __future__ import annotations

import subprocess
import sys

import psutil
from polling import wait_until

from stepscope.supervisor.signals import suspend_tree

# As ranks are below a launcher: each in a session of its own.
WITH_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, start_new_session=True)
print(child.pid, flush=True)
input()
"""


def is_stopped(process: psutil.Process) -> bool:
    return process.status() == psutil.STATUS_STOPPED


def test_a_child_in_a_session_of_its_own_is_paused_too() -> None:
    command = [sys.executable, "-c", WITH_A_CHILD]
    with subprocess.Popen(command, stdin=-1, stdout=-1, start_new_session=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            paused = list(suspend_tree(parent.pid))
            assert [process.pid for process in paused] == [parent.pid, child.pid]
            wait_until(lambda: all(map(is_stopped, paused)))
            for process in reversed(paused):
                process.resume()
            wait_until(lambda: not any(map(is_stopped, paused)))
        finally:
            child.kill()
            parent.kill()


def test_what_has_ended_is_not_paused() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert list(suspend_tree(process.pid)) == []
