"""`stepscope max-batch -- SCRIPT`: the largest batch for somebody's own script, really tried."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys

import pytest
from stepscope_command import Answer, Stepscope

MIB = 2**20
ASKED = 40

# Much memory and little work: 72 times 96 KiB a sample are kept. 40 samples take 270 MiB and more.
SCRIPT = """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--api-key")
args = parser.parse_args()

data = TensorDataset(torch.randn(96, 3, 32, 32), torch.randint(0, 10, (96,)))
loader = DataLoader(data, 4, shuffle=True, num_workers=args.workers)
layers = [nn.Conv2d(3, 24, 1), *(nn.Sigmoid() for _ in range(72))]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(1000):
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        print("a step")
"""

SMALL = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.ones(24, 4), torch.zeros(24, dtype=torch.long))

def train(loader):
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Stepscope:
    folder = tmp_path_factory.mktemp("fit")
    (folder / "train.py").write_text(SCRIPT)
    return Stepscope(folder)


@pytest.fixture(scope="module")
def limit_bytes(here: Stepscope) -> int:
    """Leave 160 MiB beside what the script takes with its own small batch."""
    done = here("trace", "--max-steps", 3, "--out", "traces", "--json", "train.py").json
    return int(done["summary"]["peak_memory_bytes"]) + 160 * MIB


@pytest.fixture(scope="module")
def answer(here: Stepscope, limit_bytes: int) -> Answer:
    """Ask once for a batch that does not fit; what follows from that is read many times."""
    limit = ("--memory-limit", f"{limit_bytes}B", "--batch-size", ASKED)
    return here("max-batch", *limit, "--json", "--", "train.py", "--workers", 1, "--api-key", "abc")


def test_the_largest_batch_for_a_script_was_tried(answer, limit_bytes, here):
    assert answer.code == 1, answer.err
    found = answer.json
    assert found["asked"] == {"batch_size": ASKED, "fits": False}
    assert (found["limit_bytes"], found["limit_of"]) == (limit_bytes, "--memory-limit")
    first = found["trials"][0]
    assert (first["batch_size"], first["status"]) == (ASKED, "out_of_memory")
    assert "its limit of" in first["reason"]
    fitting = {t["batch_size"]: t["peak_memory_bytes"] for t in found["trials"] if t["fits"]}
    assert found["largest_batch"] == max(fitting) < ASKED
    assert found["peak_memory_bytes"] == fitting[found["largest_batch"]] <= 0.95 * limit_bytes
    best = {"batch_size": found["largest_batch"]}
    assert [each["settings"] for each in found["recommended"]] == [best]
    assert found["script"] == "train.py --workers 1 --api-key '***'", "without its secrets"
    assert "abc" not in answer.out + answer.err
    assert "a step" not in answer.out + answer.err, "its output is not ours"
    assert {each.name for each in here.folder.iterdir()} == {"train.py", "traces"}


def test_a_module_begins_with_its_own_batch_and_ends_with_all_its_data(stepscope):
    (stepscope.folder / "mine.py").write_text(SMALL + "while True: train(DataLoader(data, 16))")
    done = stepscope.succeed("max-batch", "--", "-m", "mine")
    lines = [line for line in done.err.splitlines() if line.startswith("trial ")]
    assert [line.split(":")[1] for line in lines] == [" batch 16", " batch 24"]
    assert "batch_size=24" in done.out
    assert "the data set has no more samples" in done.out
    assert "forecast" not in done.out


def test_a_batch_of_the_script_s_own_that_has_too_few_samples_is_all_of_them(stepscope):
    (stepscope.folder / "mine.py").write_text(SMALL + "train(DataLoader(data, 64))")
    found = stepscope("max-batch", "--json", "--", "mine.py").json
    assert (found["largest_batch"], found["is_all_the_data"]) == (24, True)
    assert len(found["trials"]) == 1


@pytest.mark.parametrize(
    ("code", "flags", "words"),
    [
        (SMALL + "train(DataLoader(data, batch_sampler=[[0, 1]] * 4))", [], ["batch_sampler"]),
        (SMALL + "train(DataLoader(data, 4))", ["--batch-size", 25], ["up to 24", "found 25"]),
        ("raise KeyError('no such thing')", [], ["KeyError", "no such thing"]),
        ("print('no training')", [], ["without a training step"]),
    ],
)
def test_a_script_that_cannot_be_tried_ends_with_2_after_one_trial(stepscope, code, flags, words):
    (stepscope.folder / "mine.py").write_text(code)
    assert stepscope("max-batch", *flags, "--", "mine.py").is_refused(2, *words)
    assert {each.name for each in stepscope.folder.iterdir()} == {"mine.py"}


def test_ctrl_c_ends_it_also_where_the_script_then_ends_well(stepscope):
    os.mkfifo(stepscope.folder / "ready")
    (stepscope.folder / "mine.py").write_text(
        """
import time
try:
    open("ready", "w").close()
    time.sleep(600)
except KeyboardInterrupt:
    pass
"""
    )
    process = stepscope.start("max-batch", "--json", "--", "mine.py")
    (stepscope.folder / "ready").read_text()  # comes back when the script has opened it too
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    found = json.loads(out)
    assert (found["reason"], found["trials"]) == ("interrupted", [])


def test_what_a_killed_search_left_is_removed_by_the_next(stepscope):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    node = re.sub(r"[^A-Za-z0-9._]+", "-", platform.node()).strip("-.") or "run"
    mine, theirs, elsewhere = (
        stepscope.folder / f".trial-{host}-{pid}-abcd"
        for host, pid in ((node, gone.pid), (node, os.getpid()), ("elsewhere", gone.pid))
    )
    for folder in (mine, theirs, elsewhere):
        (folder / "trial").mkdir(parents=True)
    (stepscope.folder / "mine.py").write_text("raise SystemExit(1)")
    assert stepscope("max-batch", "--", "mine.py").code == 2
    assert not mine.exists()
    assert theirs.exists()
    assert elsewhere.exists()
