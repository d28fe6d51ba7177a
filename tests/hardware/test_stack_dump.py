"""A process writes its stacks on a signal, whatever it does, and leaves its own signals alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from polling import wait_until

from stepscope.hardware.kernel_waits import kernel_waits
from stepscope.hardware.stack_dump import StackDumpFile

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stacks are read on Linux only")

BEGIN = """
import faulthandler, os, pathlib, re, signal, sys, threading, time
from stepscope.hardware.stack_dump import install_stack_dump
file = install_stack_dump(pathlib.Path(sys.argv[1]))
number = int(pathlib.Path(sys.argv[1]).read_text().split()[1])
def ready():
    print(os.getpid(), flush=True)
"""

Start = Callable[[str], tuple[int, StackDumpFile]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = []

    def start_process(code: str) -> tuple[int, StackDumpFile]:
        """Start a process; return the pid that it prints, and its file."""
        stacks = tmp_path / "stacks"
        command = [sys.executable, "-c", BEGIN + code, str(stacks)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline()), StackDumpFile(stacks)

    yield start_process
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_every_thread_is_written(start: Start) -> None:
    pid, stacks = start("threading.Thread(target=time.sleep, args=(9,)).start(); ready(); input()")
    text, reason = stacks.request(pid, pid)
    assert reason is None
    assert text is not None
    assert text.count("(most recent call first)") == 2


def test_a_call_that_holds_the_interpreter_lock_does_not_prevent_it(start: Start) -> None:
    pid, stacks = start("ready(); re.match('(a+)+b', 'a' * 60)")
    # The first request may come while the process is still writing that it is ready.
    assert wait_until(lambda: "in match" in (stacks.request(pid, pid)[0] or ""))


def test_a_forked_process_writes_its_own(start: Start) -> None:
    forks = "def child():\n    ready(); time.sleep(9)\nif os.fork() == 0: child()\nos.wait()"
    pid, stacks = start(forks)
    text, _ = stacks.request(pid, trainer=0)
    assert text is not None
    assert "in child" in text


@pytest.mark.parametrize(
    "takes_it",
    [
        "signal.signal(number, lambda *_: print('mine', flush=True))",
        "faulthandler.register(number, file=sys.stdout)",
    ],
)
def test_a_signal_that_the_script_takes_is_left_to_it(start: Start, takes_it: str) -> None:
    pid, stacks = start(f"{takes_it}; ready(); time.sleep(9)")
    text, reason = stacks.request(pid, pid)
    assert text is not None, reason
    first, second = (line.split()[1] for line in stacks.path.read_text().splitlines()[:2])
    assert first != second


def test_a_handler_set_by_the_script_returns_what_it_would_without_us(start: Start) -> None:
    pid, _ = start("assert signal.signal(number, signal.SIG_IGN) is signal.SIG_DFL; ready()")
    assert pid


def test_a_file_that_the_script_has_closed_is_not_written(start: Start) -> None:
    pid, stacks = start(
        "os.close(file); other = os.open('/dev/null', os.O_WRONLY); ready(); input()"
    )
    text, reason = stacks.request(pid, pid)
    assert (text, reason) == (None, "it is another program, or has closed its files")


def test_another_program_is_not_sent_the_signal(start: Start) -> None:
    pid, stacks = start("ready(); os.execv('/bin/sleep', ['sleep', '9'])")
    while b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
        pass
    text, reason = stacks.request(pid, pid)
    assert (text, reason) == (None, "it is another program, or has closed its files")
    assert Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep")


@pytest.mark.parametrize(
    ("code", "waits_for"),
    [
        ("time.sleep(9)", "sleep"),
        ("os.read(os.pipe()[0], 1)", "pipe"),
        ("end = os.pipe()[1]; os.write(end, bytes(2**17))", "pipe"),
        ("lock = threading.Lock(); lock.acquire(); lock.acquire()", "lock"),
        ("import socket; a, b = socket.socketpair(); a.recv(1)", "socket"),
        ("os.fork() or time.sleep(9); os.wait()", "child process"),
    ],
)
def test_the_kernel_tells_what_a_thread_waits_for(start: Start, code: str, waits_for: str) -> None:
    pid, _ = start(f"keep = os.pipe(); ready(); {code}")
    for _ in range(10_000):
        [main, *_] = kernel_waits(pid)
        if main["state"] == "S" and main["waits_for"] is not None:
            break
    if main["call"] is None and main["function"] is None:
        pytest.skip("this kernel does not tell")
    assert main["waits_for"] == waits_for
