"""Runs that memory ends: near a limit, over it, by the machine's want, by the kernel."""

from __future__ import annotations

import os

import psutil
import pytest
import torch
import warm_start

from stepscope.errors import MachineError
from stepscope.hardware import cgroup, host
from stepscope.hardware.cgroup import ControlGroup
from stepscope.records.run_reader import load_run
from stepscope.settings.load_settings import validate
from stepscope.supervisor import memory_guard, start_run
from stepscope.supervisor.child_supervisor import SilentListener
from stepscope.supervisor.script_child import TraceRequest, trace
from stepscope.telemetry import telemetry_sampler

MIB = 2**20
LIMIT_BYTES = 1024 * MIB
REAL_GROUP = cgroup.make

# A network that keeps memory: at once up to 91 % of the limit, then a little more every step,
# slowly enough for a parent on a busy machine to see it come.
LEAKY = """
import time
import psutil
import torch
from torch import nn

MIB, FULL = 2**20, 1024 * 2**20

class Keeps(nn.Linear):
    kept = []

    def forward(self, x):
        if self.training:
            held = psutil.Process().memory_info().rss
            self.kept.append(torch.ones(max(4 * MIB, int(0.91 * FULL) - held) // 4))
            time.sleep(0.1)
        return super().forward(x.flatten(1))

class TakesAll(nn.Linear):
    def forward(self, x):
        taken = []
        while self.training:
            taken += [torch.ones(64 * MIB // 4)] if len(taken) < 32 else []
            time.sleep(0.01)
        return super().forward(x.flatten(1))

def leaky():
    return Keeps(3072, 10)

def greedy():
    return TakesAll(3072, 10)
"""


class Listener(SilentListener):
    """Somebody who keeps what was said, and may do something when the training is ready."""

    def __init__(self, when_ready=lambda: None):
        self.when_ready = when_ready
        self.lines = []

    def message(self, message):
        if message["type"] == "ready":
            self.when_ready()

    def output(self, line):
        self.lines.append(line)


def trainings() -> set[psutil.Process]:
    """List our children, but for the one that forks them."""
    server = warm_start._WARM.server
    waiting = None if server is None else server._process
    return {each for each in psutil.Process().children() if not waiting or each.pid != waiting.pid}


def kill_training():
    (child,) = trainings()
    child.kill()


def no_group(limit_bytes):
    raise MachineError("no control group in this test")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Train in this process's care; return the run as recorded, and how it ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cgroup, "make", no_group)
    (tmp_path / "forgetful.py").write_text(LEAKY)
    small = {"samples": 800, "batch_size": 4, "epochs": 1, "threads": 1, "out": "runs"}

    def train(listener=None, **settings):
        path, outcome = start_run.start(validate({**small, **settings}), listener or Listener())
        return load_run(path), outcome

    return train


def events(run, kind):
    return [event for event in run.events if event["event"] == kind]


def actions(run):
    return [event["action"] for event in events(run, "memory_guard")]


def assert_ended_whole(run, outcome):
    """The folder is closed and says why; the rows so far are there; nothing goes on."""
    assert (run.status, outcome.exit_code) == ("out_of_memory", 4), outcome.reason
    assert run.info["reason"] == outcome.reason
    assert run.info["process"] is None
    assert all(size > 0 for size in run.telemetry["rss_bytes"])
    assert len(run.telemetry) > 0
    assert run.summary["peak_memory_bytes"] > 0
    assert actions(run)[-1] == "ended"
    assert not trainings()


# --- a limit, held by looking ---------------------------------------------------------------------


def test_a_leak_ends_between_two_steps_with_a_checkpoint(run):
    done, outcome = run(model="forgetful:leaky", memory_limit=LIMIT_BYTES)
    assert_ended_whole(done, outcome)
    assert actions(done) == ["asked_to_end", "ended"]
    assert "near its limit of 1.0 GiB" in outcome.reason
    assert len(done.steps) > 0
    saved = torch.load(done.path / "checkpoint.pt", weights_only=True)
    assert saved["progress"]["position"] == {"stage": 1, "step": len(done.steps)}
    (limit,) = events(done, "memory_limit")
    assert (limit["limit_bytes"], limit["held_by"]) == (LIMIT_BYTES, "watchdog")
    assert limit["reason"]


def test_a_step_that_breaks_the_limit_is_not_waited_for(run):
    done, outcome = run(model="forgetful:greedy", memory_limit=LIMIT_BYTES)
    assert_ended_whole(done, outcome)
    assert actions(done)[-2:] == ["killed", "ended"]
    assert "over its limit of 1.0 GiB" in outcome.reason
    killed = events(done, "memory_guard")[-2]
    assert killed["used_bytes"] > killed["limit_bytes"] == LIMIT_BYTES


def test_loader_workers_go_before_the_training_does(run, monkeypatch):
    for often in ("_SAMPLE_EVERY_S", "_SAMPLE_SLOWLY_EVERY_S", "_WORKERS_SIZES_EVERY_S"):
        monkeypatch.setattr(telemetry_sampler, often, 0.05)
    listener = Listener()
    done, outcome = run(listener, model="forgetful:leaky", memory_limit=LIMIT_BYTES, workers=1)
    assert (done.status, outcome.exit_code) == ("out_of_memory", 4), outcome.reason
    assert actions(done)[0] == "worker_ended"
    assert any("ended one loader worker" in line for line in listener.lines)


# --- want on the machine, without a limit ---------------------------------------------------------


@pytest.fixture
def machine(monkeypatch):
    """A machine of the test's own, where others hold next to nothing."""
    memory = {"total": 200 * MIB, "available": 190 * MIB}
    monkeypatch.setattr(host, "memory_bytes", lambda: memory["total"])
    monkeypatch.setattr(host, "available_bytes", lambda: memory["available"])
    monkeypatch.setattr(cgroup, "limited", dict)
    return memory


@pytest.mark.parametrize(("left", "action"), [(50 * MIB, "asked_to_end"), (10 * MIB, "killed")])
def test_a_run_that_leaves_the_machine_little_is_ended(run, machine, left, action):
    done, outcome = run(Listener(lambda: machine.update(available=left)))
    assert_ended_whole(done, outcome)
    assert actions(done) == [action, "ended"]
    assert f"{left // MIB}.0 MiB of 200.0 MiB were left on this machine" in outcome.reason
    assert (done.path / "checkpoint.pt").exists() or action == "killed"


WAITS_FOR_WARNING = """
import pathlib, time
while not any("warned" in each.read_text() for each in pathlib.Path("runs").glob("*/events.jsonl")):
    time.sleep(0.05)
open("done", "w").close()
"""


def test_somebodys_own_script_is_warned_of_and_goes_on(tmp_path, machine, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    machine.update(total=52 * MIB, available=50 * MIB)
    script = tmp_path / "script.py"
    script.write_text(WAITS_FOR_WARNING)
    monkeypatch.setattr(memory_guard, "_CHECK_SCRIPT_EVERY_S", 0.05)
    path, outcome = trace(TraceRequest(str(script), None, ()), output_to_stderr=False)
    assert (tmp_path / "done").exists()
    assert outcome.status == "completed"
    assert actions(load_run(path)) == ["warned"]
    assert capfd.readouterr().err.count("memory is short") == 1


# --- a limit, held by a control group -------------------------------------------------------------


@pytest.fixture
def looks_like_a_group(tmp_path, monkeypatch):
    """A folder with a group's files, for our part; the kernel's is in `test_control_group`."""
    folder = tmp_path / "group"
    folder.mkdir()
    (folder / "memory.current").write_text("1000")
    (folder / "memory.events").write_text("oom_kill 0\n")
    removed = []
    monkeypatch.setattr(cgroup, "make", lambda limit_bytes: ControlGroup(folder))
    monkeypatch.setattr(ControlGroup, "remove", lambda group: removed.append(group.folder))
    yield folder
    assert removed == [folder], "whatever happened, the group is taken away"


def test_the_training_joins_the_group_before_it_begins(run, looks_like_a_group):
    with warm_start.cold_start():
        done, outcome = run(memory_limit="2GiB", samples=64, batch_size=32)
    assert outcome.exit_code == 0, outcome.reason
    assert (looks_like_a_group / "cgroup.procs").read_text() == "0\n"
    (limit,) = events(done, "memory_limit")
    assert (limit["held_by"], limit["reason"]) == ("control group", None)


def test_the_group_says_when_the_training_nears_its_limit(run, looks_like_a_group):
    full = Listener(lambda: (looks_like_a_group / "memory.current").write_text(str(1990 * MIB)))
    done, outcome = run(full, memory_limit="2000MiB")
    assert_ended_whole(done, outcome)
    assert actions(done) == ["asked_to_end", "ended"]


@pytest.mark.parametrize("limit", [None, "2GiB"])
def test_a_kernel_kill_is_recognised_by_the_counter(run, request, monkeypatch, limit):
    kills = [7]
    monkeypatch.setattr(host, "oom_kills", lambda: kills[-1])
    group = request.getfixturevalue("looks_like_a_group") if limit else None

    def kill():
        if group is None:
            kills.append(8)
        else:
            (group / "memory.events").write_text("oom_kill 1\n")
        kill_training()

    done, outcome = run(Listener(kill), memory_limit=limit)
    assert (done.status, outcome.exit_code) == ("out_of_memory", 4)
    assert outcome.reason.startswith("the kernel killed the training: out of memory")
    assert ("2.0 GiB" in outcome.reason) == bool(limit)
    assert actions(done) == ["ended"]


def test_a_real_group_holds_a_real_training(run, monkeypatch):
    monkeypatch.setattr(cgroup, "make", REAL_GROUP)
    try:
        probe = cgroup.make(LIMIT_BYTES)
    except MachineError as error:
        pytest.skip(f"no control group of our own here: {error}")
    probe.remove()
    done, outcome = run(model="forgetful:greedy", memory_limit=LIMIT_BYTES)
    assert (done.status, outcome.exit_code) == ("out_of_memory", 4), outcome.reason
    assert events(done, "memory_limit")[0]["held_by"] == "control group"
    assert not list(probe.folder.parent.glob(f"stepscope-{os.getpid()}-*"))
