"""A run that hangs is noticed, explained and, on request, stopped; slow and paused ones are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from checked_schemas import check
from polling import free_port, wait_until
from stepscope_command import Answer, Stepscope

from stepscope.errors import RequestError
from stepscope.hardware.kernel_waits import process_state
from stepscope.hardware.stack_dump import HEARTBEAT, STACKS_FILE
from stepscope.meter.clock import now_ns
from stepscope.records import run_folder, schema
from stepscope.records.run_reader import load_run
from stepscope.supervisor import hang_watch
from stepscope.supervisor.hang_watch import HangWatch, parse_hang_after

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stacks are read on Linux only")


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "_GRACE_S", 0.5)


# --- Real deadlocks in a script -------------------------------------------------------------------

BEGIN = """
import os, queue, signal, subprocess, sys, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

lock = threading.Lock()
net = nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

class Samples(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index >= 12:
            hold_up()
        return torch.ones(4), 0

def hold_up():
    pass

def train(workers=0, after_step=lambda: None, **loader):
    for images, labels in DataLoader(Samples(), 4, num_workers=workers, **loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
        after_step()
"""

A_WORKER_WITH_A_LOCK_HELD_AT_THE_FORK = """
def hold_up():
    with lock:
        pass

lock.acquire()
train(workers=2)
"""

A_SLEEPY_DATASET = """
import time
import torch

class Sleepy(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index >= 12:
            time.sleep(600)
        return torch.ones(4), 0
"""

A_SPAWNED_WORKER = """
if __name__ == "__main__":
    from sleepy import Sleepy
    Samples = Sleepy
    train(workers=1, multiprocessing_context="spawn")
"""

A_STOPPED_WORKER = """
def hold_up():
    os.kill(os.getpid(), signal.SIGSTOP)

train(workers=1)
"""

A_FULL_PIPE = """
def call():
    talks = [sys.executable, "-c", "print('x' * 1_000_000)"]
    subprocess.Popen(talks, stdout=subprocess.PIPE).wait()

train(after_step=call)
"""

A_LOST_RANK = """
import torch.distributed as dist

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
peer = "import torch.distributed as d, time; d.init_process_group('gloo', rank=1, world_size=2)"
subprocess.Popen([sys.executable, "-c", peer + "; time.sleep(600)"])
dist.init_process_group("gloo", rank=0, world_size=2)
train(after_step=lambda: dist.all_reduce(torch.ones(1)))
"""


def trace_until_hang(
    stepscope: Stepscope, script: str, *arguments: str, warm: bool = True
) -> tuple[Answer, Any]:
    """Trace a script that hangs and is stopped; return the answer and the event."""
    (stepscope.folder / "train.py").write_text(BEGIN + script)
    flags = ("--hang-after", "1s", "--on-hang", "stop", "--energy", "off")
    answer = stepscope("trace", *flags, "train.py", *arguments, warm=warm)
    run = load_run(stepscope.folder / "runs/latest")
    [event] = [each for each in run.events if each["event"] == "hang"]
    check("events.jsonl", event)
    assert (answer.code, run.status) == (1, "failed")
    assert (run.info["reason"] or "").startswith("stopped by --on-hang: no step for ")
    assert event["text"] in answer.err
    assert event["advice"] in answer.err
    wait_until(lambda: not any(psutil.pid_exists(each["pid"]) for each in event["processes"]))
    assert not (run.path / STACKS_FILE).exists()
    return answer, event


def places(process: Any) -> list[str]:
    return [f"{frame['file']}:{frame['function']}" for frame in process["threads"][-1]["frames"]]


def test_a_worker_that_waits_for_a_lock_held_at_the_fork(stepscope: Stepscope) -> None:
    answer, event = trace_until_hang(stepscope, A_WORKER_WITH_A_LOCK_HELD_AT_THE_FORK)
    trainer, *workers = event["processes"]
    assert (trainer["role"], trainer["waits_for"]) == ("trainer", "loader worker")
    assert any("train.py:train" in place for place in places(trainer))
    assert [(each["role"], each["waits_for"]) for each in workers] == [
        ("loader worker", "lock")
    ] * 2
    assert all(places(worker)[0].endswith("train.py:hold_up") for worker in workers)
    assert "held when the process was forked" in event["text"]
    assert "multiprocessing_context='spawn'" in event["advice"]
    assert "hold_up: with lock:" in answer.err


@pytest.mark.long
def test_a_worker_that_was_spawned_writes_its_stacks_too(stepscope: Stepscope) -> None:
    (stepscope.folder / "sleepy.py").write_text(A_SLEEPY_DATASET)
    _, event = trace_until_hang(stepscope, A_SPAWNED_WORKER, warm=False)
    [_, worker] = event["processes"]
    assert (worker["role"], worker["waits_for"]) == ("loader worker", "sleep")
    assert any("sleepy.py:__getitem__" in place for place in places(worker))


def test_a_worker_that_is_stopped_by_a_signal(stepscope: Stepscope) -> None:
    _, event = trace_until_hang(stepscope, A_STOPPED_WORKER)
    [_, worker] = event["processes"]
    assert (worker["role"], worker["state"], worker["waits_for"]) == (
        "loader worker",
        "T",
        "stopped",
    )
    assert event["text"].startswith(f"Loader worker {worker['pid']} is stopped by a signal")
    assert event["advice"] == f"Continue with: kill -CONT {worker['pid']}"


def test_a_child_process_whose_output_nobody_reads(stepscope: Stepscope) -> None:
    _, event = trace_until_hang(stepscope, A_FULL_PIPE)
    trainer, child = event["processes"]
    assert (trainer["waits_for"], child["waits_for"]) == ("child process", "pipe")
    assert child["command"].endswith("-c")  # and no argument, which may be a secret
    assert "full pipe that nobody reads" in event["text"]


def test_a_rank_that_is_lost(stepscope: Stepscope) -> None:
    _, event = trace_until_hang(stepscope, A_LOST_RANK, str(free_port()))
    assert event["waits_for"] == "collective"
    assert "in all_reduce for other ranks" in event["text"]
    names = {each["thread"] for each in event["processes"][0]["kernel"]}
    assert any("gloo" in name for name in names)


# --- A training of ours ---------------------------------------------------------------------------

A_NETWORK_THAT_HANGS = """
import threading
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(3 * 32 * 32, 10), 0

    def forward(self, images):
        self.calls += self.training and len(images) > 2
        if self.calls > 6:
            threading.Event().wait()
        return self.layer(images.flatten(1))

def make(**_):
    return Net()
"""


def test_a_training_of_ours_that_hangs_is_stopped(
    stepscope: Stepscope, tiny: tuple[object, ...]
) -> None:
    (stepscope.folder / "hanging_net.py").write_text(A_NETWORK_THAT_HANGS)
    flags = ("--model", "hanging_net:make", "--hang-after", "1s", "--on-hang", "stop")
    answer = stepscope("run", *tiny, *flags)
    run = load_run(stepscope.folder / "runs/latest")
    [event] = [each for each in run.events if each["event"] == "hang"]
    assert (answer.code, run.status) == (1, "failed")
    assert event["waits_for"] == "condition"
    assert "hanging_net.py:" in event["text"]


# --- When a process hangs, and when it does not ---------------------------------------------------

AFTER_S = 0.3
IDLE = "import time; print(flush=True); time.sleep(600)"
BUSY = "print(flush=True)\nwhile True: pass"


class Watched:
    """A process and its watch, with a folder of one's own."""

    def __init__(self, folder: Path, code: str) -> None:
        self.run = run_folder.create(folder, "watched", "trace", {})
        command = [sys.executable, "-c", code]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.child.stdout is not None
        self.child.stdout.readline()  # it has started
        self.printed: list[str] = []
        self.watch = HangWatch(
            self.run, self.child, now_ns(), self.printed.append, AFTER_S, is_script=True
        )
        self.watch.check_every_s = 0.02

    def check_for(self, duration_s: float, between: Callable[[], object] = lambda: None) -> None:
        until = time.monotonic() + duration_s
        while time.monotonic() < until:
            self.watch.check()
            between()
            time.sleep(0.02)

    def events(self) -> list[str]:
        return [event["event"] for event in load_run(self.run.path).events]

    def add_step(self, step_s: float) -> None:
        with (self.run.path / schema.STEPS).open("a") as steps:
            row = {"epoch": 1, "step": 1, "step_s": step_s}
            steps.write(",".join(str(row.get(name, "")) for name in schema.STEP_COLUMNS) + "\n")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[[str], Watched]]:
    made: list[Watched] = []

    def watch(code: str) -> Watched:
        made.append(Watched(tmp_path, code))
        return made[-1]

    yield watch
    for each in made:
        each.child.kill()
        each.child.communicate()


def test_an_idle_process_without_a_step_hangs_once(watched: Callable[[str], Watched]) -> None:
    process = watched(IDLE)
    process.check_for(AFTER_S / 2)
    assert process.events() == []
    process.check_for(4 * AFTER_S)
    assert process.events() == ["hang"]
    assert process.printed[0].startswith("stepscope: hang: no step yet after ")


def test_rows_of_steps_are_progress(watched: Callable[[str], Watched]) -> None:
    process = watched(IDLE)
    process.check_for(3 * AFTER_S, lambda: process.add_step(0.001))
    assert process.events() == []
    process.check_for(3 * AFTER_S)
    process.add_step(0.001)
    process.check_for(0.1)
    assert process.events() == ["hang", "hang_ended"]
    check("events.jsonl", load_run(process.run.path).events[-1])
    assert "(usually one in 1 ms)" in process.printed[0]
    assert "for a sleep to end" in process.printed[0]
    assert "the run continues after" in process.printed[-1]


ASKS_ITS_USER = "import os; ours, theirs = os.openpty(); print(flush=True); os.read(theirs, 1)"


@pytest.mark.parametrize(
    ("code", "step_s", "notes"),
    [(IDLE, AFTER_S, b""), (IDLE, None, HEARTBEAT), (ASKS_ITS_USER, None, b"")],
    ids=["twenty medians of slow steps", "the heartbeat of a script", "a script that asks"],
)
def test_what_is_no_hang(
    watched: Callable[[str], Watched], code: str, step_s: float | None, notes: bytes
) -> None:
    process = watched(code)
    stacks = process.run.path / STACKS_FILE
    stacks.write_bytes(notes)
    if step_s is not None:
        process.add_step(step_s)
    process.check_for(3 * AFTER_S, lambda: notes and os.utime(stacks))
    assert process.events() == []


def test_a_busy_process_may_take_longer(
    watched: Callable[[str], Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = watched(BUSY)
    process.check_for(3 * AFTER_S)
    assert process.events() == []
    monkeypatch.setattr(hang_watch, "_PATIENCE_IF_BUSY", 1)
    process.check_for(AFTER_S)
    assert process.events() == []  # without a heartbeat it is not known whether it moves
    (process.run.path / STACKS_FILE).write_bytes(HEARTBEAT)
    process.check_for(2 * AFTER_S)
    assert process.events() == ["hang"]
    assert "although its processes are busy" in process.printed[0]


def test_a_stopped_process_does_not_hang(watched: Callable[[str], Watched]) -> None:
    process = watched(IDLE)
    process.child.send_signal(signal.SIGSTOP)
    wait_until(lambda: process_state(process.child.pid) == "T")
    process.check_for(3 * AFTER_S)
    assert process.events() == []
    process.child.send_signal(signal.SIGCONT)
    process.check_for(4 * AFTER_S)
    assert process.events() == ["hang"]


def test_the_time_in_which_the_parent_was_stopped_does_not_count(
    watched: Callable[[str], Watched],
) -> None:
    process = watched(IDLE)
    process.check_for(0.1)
    time.sleep(2 * AFTER_S)  # longer than ten checks
    process.watch.check()
    process.watch.check()
    assert process.events() == []


def test_the_time_until_a_hang_has_a_unit_or_is_0() -> None:
    assert [parse_hang_after(text) for text in ("60s", "1.5s", "0")] == [60.0, 1.5, 0.0]
    with pytest.raises(RequestError, match=r"hang_after: '60' is not a time.* or 0 for never"):
        parse_hang_after("60")
