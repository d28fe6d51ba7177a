"""`stepscope workers` and `stepscope bottleneck` on trainings whose answer is known.

What is slow is slow by sleeping, so that it takes no core: the answer is the same on any machine,
however busy.
"""

import json
from pathlib import Path

import pytest

# A pipeline that takes longer than the network: 16 ms a batch beside 4 ms.
SLOW_SCRIPT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.zeros(8), index % 2

net = nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in DataLoader(Slow(), batch_size=16, shuffle=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    time.sleep(0.004)
    optimizer.step()
"""

# The opposite: 50 ms a step in the network, and data that lie in memory.
SLOW_NETWORK = """
import time
from torch import nn

class Slow(nn.Linear):
    def forward(self, x):
        if self.training:
            time.sleep(0.05)
        return super().forward(x.flatten(1))

def net():
    return Slow(3072, 10)
"""


def test_a_script_with_a_slow_data_set_is_told_to_use_more_workers_and_where(stepscope):
    script = stepscope.folder / "train.py"
    script.write_text(SLOW_SCRIPT)

    found = stepscope.succeed("workers", "--json", "--", "train.py").json
    assert found["current"] == 0
    by_number = {row["workers"]: row for row in found["candidates"]}
    assert {0, 1, 2, 4} <= by_number.keys()
    assert found["bound_by"] == "preprocessing"
    assert found["cost_s"] > 0
    assert script.read_text() == SLOW_SCRIPT
    trials = json.loads((Path(stepscope.folder) / found["path"] / "sweep.json").read_text())
    assert {trial["status"] for trial in trials["trials"]} == {"completed"}
    if found["text"].startswith("Undecided: other programs"):
        assert (found["recommended"], found["disturbed_rounds"]) == (0, 3)
        return
    assert found["recommended"] > 1
    assert found["verified_speedup"] > 1.3
    assert found["verified"]["rounds"] >= 3
    assert f"num_workers={found['recommended']}: " in found["text"]
    assert found["change"].startswith("Change train.py:17:  DataLoader(Slow(), batch_size=16")
    assert by_number[found["recommended"]]["memory_bytes"] > 0
    none = by_number[0]["samples_per_s"]
    assert none["low"] <= none["median"] <= none["high"]
    assert not by_number[0]["tied_with_best"]


@pytest.mark.long  # what it decides is simulated in tests/experiments
@pytest.mark.alone  # whatever runs beside it may make a worker look useful
def test_a_network_with_its_data_in_memory_needs_no_workers(stepscope):
    (stepscope.folder / "slow.py").write_text(SLOW_NETWORK.replace("0.05", "0.02"))

    found = stepscope.succeed(
        "workers", "--model", "slow:net", "--samples", 480, "--batch-size", 8, "--json"
    ).json
    assert found["recommended"] == 0
    assert found["bound_by"] == "compute"
    assert found["verified_speedup"] is None
    assert found["verified"]["reason"]


def test_a_script_without_a_loader_has_no_workers_to_set(stepscope):
    (stepscope.folder / "train.py").write_text(
        """
import torch
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    net(torch.zeros(4, 2)).sum().backward()
    optimizer.step()
"""
    )

    answer = stepscope("workers", "--", "train.py")

    assert answer.is_refused(2, "makes no DataLoader")


SHORT = ("--samples", 160, "--batch-size", 8, "--max-steps", 12, "--repeats", 1, "--threads", 1)


@pytest.mark.parametrize(
    ("slow", "bound_by"),
    [
        (("--pipeline-delay-ms", 10), "preprocessing"),
        (("--source", "local", "--source-delay-ms", 10), "storage"),
        (("--model", "slow:net"), "compute"),
    ],
)
def test_stalls_names_what_was_made_slow(stepscope, slow, bound_by):
    (stepscope.folder / "slow.py").write_text(SLOW_NETWORK)

    found = stepscope.succeed("bottleneck", *SHORT, *slow, "--json").json
    assert found["bound_by"] == bound_by
    assert found["why"]
    assert found["ways"].keys() == {"synthetic", "memory", "source"}
    assert found["page_cache"]["how"] in ("dropped", "advised")
    assert found["caches_not_emptied"]
    assert sum(found["lost"].values()) < 1
    assert found["at_most"]["more_workers"] >= found["at_most"]["faster_storage"] * 0.999


def test_synthetic_batches_have_no_workers_and_leave_no_folder(stepscope):
    assert stepscope("workers", "--source", "synthetic").is_refused(2, "synthetic")
    assert not (stepscope.folder / "runs").exists()
