"""A pause reaches every process of a training, whatever session it is in."""

from __future__ import annotations

import subprocess
import sys

import psutil

from stepscope.experiments.supervise import _pause_all

# As ranks are below a launcher: each in a session of its own.
WITH_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, start_new_session=True)
print(child.pid, flush=True)
input()
"""


def test_a_child_in_a_session_of_its_own_is_paused_too() -> None:
    command = [sys.executable, "-c", WITH_A_CHILD]
    with subprocess.Popen(command, stdin=-1, stdout=-1, start_new_session=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            paused = list(_pause_all(parent.pid))
            assert [process.pid for process in paused] == [parent.pid, child.pid]
            assert {process.status() for process in paused} == {psutil.STATUS_STOPPED}
            for process in reversed(paused):
                process.resume()
            assert psutil.STATUS_STOPPED not in {process.status() for process in paused}
        finally:
            child.kill()
            parent.kill()


def test_what_has_ended_is_not_paused() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert list(_pause_all(process.pid)) == []
