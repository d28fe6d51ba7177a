"""The processes below another one: real ones, and the same that psutil finds."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from stepscope.hardware.process import descendants

WAIT = "import sys; sys.stdin.read()"
# A thread of its own starts the child, as a loader's thread would; both wait for the same end.
PARENT = f"""
import subprocess, sys, threading
def start():
    child = subprocess.Popen([sys.executable, "-c", {WAIT!r}])
    print(child.pid, flush=True)
    child.wait()
threading.Thread(target=start).start()
"""


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Give a process and its child's number, both of which end with the test."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe, text=True
    ) as parent:
        yield parent, int(parent.stdout.readline())


def test_children_and_theirs_are_found_whichever_thread_started_them(family):
    parent, grandchild = family
    found: list[set[int]] = []

    def look() -> None:
        found.append({process.pid for process in descendants(psutil.Process())})

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert {parent.pid, grandchild} <= found[0]
    assert {each.pid for each in descendants(psutil.Process(parent.pid))} == {grandchild}
    assert descendants(psutil.Process(grandchild)) == []


def test_a_process_that_has_ended_is_told_from_one_without_children():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        ended = psutil.Process(child.pid)
    with pytest.raises(psutil.NoSuchProcess):
        descendants(ended)
