"""Trainings forked from a process that has torch imported, against those started from nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stepscope.experiments.workload import TrainingWorkload, TrialRequest
from stepscope.records import schema
from stepscope.records.run_reader import load_run
from stepscope.supervisor.child_supervisor import Outcome, SilentListener
from stepscope.supervisor.warm_start import ForkServer

pytestmark = pytest.mark.usefixtures("cold")

SHORT = {"samples": 320, "batch_size": 32, "epochs": 1, "evaluate": False, "threads": 1}


@pytest.fixture(scope="module")
def server(cold: None) -> Iterator[ForkServer]:
    """Start one for all tests; the last of them ends it."""
    with ForkServer() as server:
        yield server


def train(path: Path, server: ForkServer | None, **changed: object) -> Outcome:
    training = TrainingWorkload({**SHORT, **changed}, quick=True)
    return training.run({}, TrialRequest(path, SilentListener(), None, server))


def test_a_killed_forked_training_is_our_child_and_ends_as_one_that_was_started(
    server: ForkServer, tmp_path: Path
) -> None:
    sessions: list[int] = []

    class Killing(SilentListener):
        def message(self, message: dict[str, object]) -> None:
            if message["type"] == "ready":  # servers were there before it
                child = max(psutil.Process().children(), key=psutil.Process.create_time)
                sessions.append(os.getsid(child.pid))
                child.kill()

    training = TrainingWorkload({**SHORT, "workers": 1}, quick=True)
    outcome = training.run({}, TrialRequest(tmp_path / "run", Killing(), None, server))
    assert sessions != [os.getsid(0)]
    assert outcome.status == schema.FAILED
    assert "SIGKILL" in str(outcome.reason)
    assert train(tmp_path / "next", server).result["instrument"]["forked"]


def test_a_server_that_cannot_import_torch_says_why_and_forks_nothing(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch on this board')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with ForkServer() as server:
        assert server.fork("this", [], environment) is None
        assert server.reason == "ImportError: no torch on this board"


def test_a_server_that_would_take_memory_from_trainings_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = {"ready": True, "private_bytes": 2**28}
    monkeypatch.setattr(ForkServer, "_answer", lambda server, within_s: large)
    monkeypatch.setattr("stepscope.hardware.host.available_bytes", lambda: 2**30)
    with ForkServer() as server:
        assert server.fork("this", [], os.environ) is None
        assert "memory" in str(server.reason)
        assert server._process is None


def test_without_its_server_a_training_is_started_from_nothing_and_is_the_same(
    server: ForkServer, tmp_path: Path
) -> None:
    outcomes = [train(tmp_path / "forked", server)]
    assert server._process is not None
    server._process.kill()
    server._process.wait()
    outcomes.append(train(tmp_path / "started", server))
    assert "fork server" in str(server.reason)
    assert [each.status for each in outcomes] == [schema.COMPLETED] * 2
    assert [each.result["instrument"]["forked"] for each in outcomes] == [True, False]
    forked, started = (load_run(tmp_path / name) for name in ("forked", "started"))
    assert list(forked.steps["loss"]) == list(started.steps["loss"])
    peaks = [run.summary["peak_memory_bytes"] for run in (forked, started)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.05)
