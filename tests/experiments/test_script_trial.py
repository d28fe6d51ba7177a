"""A script as a trial: short, out of the way, with other settings, and nothing of it left over."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepscope.errors import RequestError
from stepscope.experiments.script_loaders import batch_bytes, training_loader
from stepscope.experiments.script_trial import OUTPUT, run_script, with_argument
from stepscope.records.run_reader import Run, load_run
from stepscope.supervisor.child_supervisor import Outcome, SilentListener
from stepscope.supervisor.script_child import TraceRequest

BEGIN = """
import atexit, os, sys, time
print("process", os.getpid(), flush=True)
"""

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.ones(240, 4), torch.zeros(240, dtype=torch.long))

def train(loader, epochs=100):
    for epoch in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
"""


class Trial:
    """A script in a folder, and how it went as a trial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "trials" / "one"

    def __call__(self, code: str, *arguments: str, **asked: Any) -> tuple[Outcome, Run]:
        script = self.folder / "train.py"
        script.write_text(BEGIN + code, encoding="utf-8")
        limits = {name: asked.pop(name) for name in ("time_limit_s",) if name in asked}
        request = TraceRequest(str(script), None, arguments, **{"max_steps": 4, **asked})
        outcome = run_script(request, self.path, SilentListener(), **limits)
        return outcome, load_run(self.path)

    @property
    def printed(self) -> str:
        return (self.path / OUTPUT).read_text(encoding="utf-8")

    def left_running(self) -> list[psutil.Process]:
        """List what is left in the script's session; what was killed may take a moment to go."""
        session = int(self.printed.split()[1])
        left = [each for each in psutil.process_iter() if _session(each) == session]
        return psutil.wait_procs(left, timeout=10)[1]


def _session(process: psutil.Process) -> int | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (OSError, psutil.NoSuchProcess):  # it has just ended
        return None


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path)


def test_it_ends_after_its_steps_whatever_the_script_would_still_do(trial: Trial) -> None:
    outcome, run = trial(
        TRAIN
        + """
atexit.register(lambda: open("at_exit", "w"))
loader = DataLoader(data, 8, shuffle=True)
print("begins", sys.stdin.read(), end="")
for trial_request in range(3):
    try:
        train(loader)
    except BaseException:
        print("goes on")
    finally:
        open("checkpoint", "w")
""",
        loader={"num_workers": 2, "batch_size": 6},
    )
    assert (outcome.status, outcome.exit_code) == ("completed", 0), outcome.reason
    assert run.summary["steps"] == 4
    assert set(run.steps.columns["samples"]) == {6}
    assert set(run.steps.columns["load_worker"]) <= {0, 1}
    assert "begins" in trial.printed
    assert "goes on" not in trial.printed
    assert trial.left_running() == []
    assert {each.name for each in trial.folder.iterdir()} == {"train.py", "trials"}
    assert run.info["spec"]["loader"] == {"num_workers": 2, "batch_size": 6}


def test_a_script_that_ends_earlier_ends_by_itself(trial: Trial) -> None:
    outcome, run = trial(TRAIN + "train(DataLoader(data, 120), epochs=1)\nprint('saved')")
    assert (outcome.status, run.summary["steps"]) == ("completed", 2)
    assert "saved" in trial.printed
    loader = training_loader(run)
    assert loader is not None
    assert (loader["found"]["batch_size"], loader["samples"], loader["set"]) == (120, 240, {})


def test_what_a_batch_takes_is_known_from_the_largest(trial: Trial) -> None:
    code = """
data = [{"x": torch.ones(3), "pair": (torch.tensor(1), "a word")} for _ in range(240)]
next(iter(DataLoader(data, 2)))
for batch in DataLoader(data, 8):
    train([(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))], epochs=1)
next(iter(DataLoader(data, 4)))
"""
    _, run = trial(TRAIN + code)
    assert batch_bytes(run) == 8 * (3 * 4 + 8)


def test_settings_without_a_loader_are_a_failed_trial_that_says_so(trial: Trial) -> None:
    code = "train([(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))])"
    outcome, run = trial(TRAIN + code, loader={"num_workers": 2})
    assert (outcome.status, outcome.exit_code) == ("failed", 2)
    assert "makes no DataLoader" in (run.info["reason"] or "")
    assert batch_bytes(run) is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise KeyError('no such thing')", "KeyError: 'no such thing'"),
        ("print('wrong flag', flush=True); os._exit(3)", "exited with code 3: wrong flag"),
    ],
)
def test_a_script_that_fails_says_why(trial: Trial, code: str, reason: str) -> None:
    outcome, _ = trial(code)
    assert outcome.status == "failed"
    assert (outcome.reason or "").endswith(reason)


def test_its_time_is_limited(trial: Trial) -> None:
    outcome, run = trial("time.sleep(600)", time_limit_s=2.0)
    assert run.status == "failed"
    assert "time limit" in (outcome.reason or "")
    assert trial.left_running() == []


def test_a_folder_that_is_there_is_not_written_into(trial: Trial) -> None:
    trial.path.mkdir(parents=True)
    with pytest.raises(RequestError, match="exists already"):
        trial("")


@pytest.mark.parametrize(
    ("arguments", "flag", "value", "wanted"),
    [
        ("", "--lr", "0.1", "--lr 0.1"),
        ("--lr 0.5 data", "--lr", "0.1", "--lr 0.1 data"),
        ("--lr=0.5 data", "--lr", "0.1", "--lr=0.1 data"),
        ("--lr -1 --x", "--lr", "0.1", "--lr 0.1 --x"),
        ("--lr -.5", "--lr", "0.1", "--lr 0.1"),
        ("--lr 1 --lr=2", "--lr", "3", "--lr 3 --lr=3"),
        ("--lr-decay 0.5", "--lr", "0.1", "--lr-decay 0.5 --lr 0.1"),
        ("-b 8", "-b", "16", "-b 16"),
        ("a -- --lr 1", "--lr", "0.1", "a --lr 0.1 -- --lr 1"),
        ("", "--amp", "on", "--amp"),
        ("", "--amp", "off", ""),
        ("--amp data", "--amp", "off", "data"),
        ("--amp data", "--amp", "on", "--amp data"),
        ("--amp off", "--amp", "on", "--amp on"),
        ("--amp=on", "--amp", "off", "--amp=off"),
        ("lr=0.5 depth=3", "lr", "0.1", "lr=0.1 depth=3"),
        ("depth=3", "lr", "0.1", "depth=3 lr=0.1"),
    ],
)
def test_a_flag_of_the_script_is_replaced(
    arguments: str, flag: str, value: str, wanted: str
) -> None:
    assert with_argument(arguments.split(), flag, value) == wanted.split()


values = some.floats(-9, 9).map(lambda number: f"{number:.3f}")


@given(
    some.lists(
        some.one_of(
            some.tuples(some.just("--lr"), values),
            some.tuples(values.map(lambda value: f"--lr={value}")),
            some.tuples(some.just("--name"), some.sampled_from(["a", "b"])),
            some.tuples(some.just("--verbose")),
        )
    ),
    values,
)
def test_the_script_s_parser_reads_the_value_that_was_set(
    parts: list[tuple[str, ...]], value: str
) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.add_argument("--name")
    parser.add_argument("--verbose", action="store_true")
    before = [word for part in parts for word in part]
    after = with_argument(before, "--lr", value)
    wanted = vars(parser.parse_args(before)) | {"lr": float(value)}
    assert vars(parser.parse_args(after)) == wanted
    assert with_argument(after, "--lr", value) == after
