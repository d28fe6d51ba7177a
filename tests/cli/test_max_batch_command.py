"""`stepscope max-batch` from outside: batches that are really tried, and every wrong request."""

from __future__ import annotations

import re

import pytest
from stepscope_command import Answer, Stepscope

MIB = 2**20
ROOM_BYTES = 256 * MIB
ASKED = 40

# Much memory and little work: 72 times 96 KiB a sample are kept, a quarter of it with blocks
# recomputed. 40 samples take 270 MiB and more, and have 256 MiB.
OWN = """\
import torch
from torch import nn

class Block(nn.Sequential):
    pass

class Repeat(nn.Module):
    def forward(self, x):
        return x.repeat(1, 8, 1, 1)

def wide():
    blocks = [Block(*(nn.Sigmoid() for _ in range(9))) for _ in range(8)]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)]
    return nn.Sequential(Repeat(), nn.Conv2d(24, 24, 1, groups=24), *blocks, *last)

class Fails(nn.Module):
    def __init__(self, when):
        super().__init__()
        self.linear, self.when = nn.Linear(3072, 10), when

    def forward(self, x):
        if self.when == "always" or self.training:
            raise KeyError("no such thing")
        return self.linear(x.flatten(1))

def fails():
    return Fails("always")

def fails_in_training():
    return Fails("training")
"""


@pytest.fixture
def mine(stepscope):
    (stepscope.folder / "mine.py").write_text(OWN)
    return stepscope


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Stepscope:
    folder = tmp_path_factory.mktemp("fit")
    (folder / "mine.py").write_text(OWN)
    return Stepscope(folder)


@pytest.fixture(scope="module")
def limit_bytes(here: Stepscope) -> int:
    """Leave so much room beside the libraries, whose size is another on every machine."""
    bill = here("memory", "mine:wide", "--samples", 96, "--batch-size", 2, "--json").json
    return int(bill["items"]["runtime"]["bytes"]) + ROOM_BYTES


@pytest.fixture(scope="module")
def answer(here: Stepscope, limit_bytes: int) -> Answer:
    """Ask once for a batch that does not fit; what follows from that is read many times."""
    limit = ("--memory-limit", f"{limit_bytes}B")
    return here("max-batch", "mine:wide", "--samples", 96, "--batch-size", ASKED, *limit, "--json")


def test_a_batch_that_does_not_fit_was_tried_and_the_answer_is_no(answer, limit_bytes, here):
    assert answer.code == 1, answer.err
    found = answer.json
    assert (found["model"], found["limit_bytes"]) == ("mine:wide", limit_bytes)
    assert found["limit_of"] == "--memory-limit"
    assert found["asked"] == {"batch_size": ASKED, "fits": False}
    first = found["trials"][0]
    assert (first["batch_size"], first["status"], first["fits"]) == (ASKED, "out_of_memory", False)
    assert "its limit of" in first["reason"]
    assert "by forecast" not in first["reason"]
    lines = [line for line in answer.err.splitlines() if line.startswith("trial ")]
    assert len(lines) == len(found["trials"])
    assert lines[0].startswith(f"trial 1: batch {ASKED}: out of memory")
    assert [each for each in here.folder.iterdir() if each.name.startswith(".")] == []
    assert not (here.folder / "runs" / "latest").is_symlink()


def test_the_largest_batch_was_tried_and_keeps_away_from_the_limit(answer, limit_bytes):
    found = answer.json
    plain = [
        trial
        for trial in found["trials"]
        if trial["accumulate"] == 1 and not trial["checkpoint_activations"]
    ]
    fitting = {each["batch_size"]: each["peak_memory_bytes"] for each in plain if each["fits"]}
    assert found["largest_batch"] == max(fitting) < ASKED
    assert found["peak_memory_bytes"] == fitting[found["largest_batch"]] <= 0.95 * limit_bytes
    assert all(each["forecast_bytes"] for each in plain if each["fits"])


def test_what_is_recommended_instead_keeps_the_batch_and_was_tried(answer):
    found = answer.json
    assert [sorted(each["settings"]) for each in found["recommended"]] == [
        ["accumulate", "batch_size"],
        ["batch_size", "checkpoint_activations"],
    ]
    for each in found["recommended"]:
        wanted = {"accumulate": 1, "checkpoint_activations": False, **each["settings"]}
        assert each["tested"]
        assert wanted["batch_size"] * wanted["accumulate"] == ASKED
        (tried,) = (t for t in found["trials"] if wanted.items() <= t.items())
        assert tried["fits"]
        assert tried["peak_memory_bytes"] == each["peak_memory_bytes"]


def test_what_is_recommended_runs(answer, stepscope, limit_bytes):
    (stepscope.folder / "mine.py").write_text(OWN)
    settings = answer.json["recommended"][0]["settings"]
    flags = ("--batch-size", settings["batch_size"], "--accumulate", settings["accumulate"])
    few = ("--samples", 96, "--epochs", 1, "--memory-limit", f"{limit_bytes}B", "--force")
    done = stepscope("run", "--model", "mine:wide", *flags, *few, "--json")
    assert (done.code, done.json["status"]) == (0, "completed"), done.err


def test_as_many_as_there_are_is_the_largest_batch_where_memory_is_no_matter(stepscope):
    answer = stepscope.succeed("max-batch", "lenet", "--samples", 50)
    assert "--batch-size 50" in answer.out
    assert "no more samples" in answer.out
    assert re.search(r"^ +50 +1 +no .* fits", answer.out, re.MULTILINE)
    assert answer.err.count("trial ") == 1
    assert list(stepscope.folder.iterdir()) == []


def test_a_limit_below_the_libraries_is_answered_with_their_size(stepscope):
    args = ("--samples", 50, "--batch-size", 10, "--memory-limit", "20MiB")
    answer = stepscope("max-batch", "lenet", *args, "--json")
    assert answer.code == 1
    found = answer.json
    assert (found["largest_batch"], found["trials"], found["recommended"]) == (None, [], [])
    assert found["asked"] == {"batch_size": 10, "fits": False}
    assert found["reason"].startswith("the libraries alone take")
    assert found["reason"] in answer.err


def test_ctrl_c_ends_it_with_the_trials_so_far(stepscope):
    asked = ("max-batch", "lenet", "--samples", 400, "--batch-size", 1, "--json")
    stopped = stepscope.interrupted_after("trial 1", *asked)  # there are 399 more samples to try
    assert stopped.code == 130, stopped.err
    found = stopped.json
    assert found["reason"] == "interrupted"
    assert found["trials"][0]["batch_size"] == 1
    assert found["largest_batch"] >= 1
    assert list(stepscope.folder.iterdir()) == []


def test_a_model_that_fails_ends_with_2_and_its_reason(mine):
    assert mine("max-batch", "mine:fails").is_refused(2, "KeyError", "no such thing")
    trained = mine("max-batch", "mine:fails_in_training", "--samples", 50)
    assert trained.code == 2
    assert "failed in training: KeyError: 'no such thing'" in trained.err
    assert trained.err.count("trial ") == 1
