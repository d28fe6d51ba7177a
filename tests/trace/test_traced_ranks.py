"""A script under torchrun: every rank its folder, one run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from stepscope_command import ENVIRONMENT, closes

from stepscope.analyze.findings.finding import RunView
from stepscope.analyze.findings.rank_findings import straggler
from stepscope.analyze.run_summary import Measured, summarize
from stepscope.records import run_folder
from stepscope.records.run_reader import Run, load_run

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "ddp.py"
SLOW_FORWARD_S = 0.02
WITH_A_SLOW_RANK = f"""
import os, runpy, time
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

class Slow(nn.ReLU):
    def forward(self, x):
        time.sleep({SLOW_FORWARD_S})
        return super().forward(x)

class WithOwnHook(DistributedDataParallel):
    def __init__(self, model):
        super().__init__(model)
        self.register_comm_hook(None, allreduce_hook)

if os.environ["RANK"] == "1":
    nn.ReLU = Slow
import torch.nn.parallel
torch.nn.parallel.DistributedDataParallel = WithOwnHook
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


@dataclass(frozen=True)
class Traced:
    answer: subprocess.CompletedProcess[str]
    run: Run


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """A script that trains on two ranks, the second of which is slow."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "slow.py"
    script.write_text(WITH_A_SLOW_RANK, encoding="utf-8")
    here = Path(sys.executable).parent
    done = subprocess.run(
        [
            *(here / "torchrun", "--standalone", "--nproc-per-node", "2"),
            *(here / "stepscope", "trace", "--out", folder / "runs", script, "--epochs", "1"),
        ],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    [made] = [path for path in (folder / "runs").iterdir() if not path.is_symlink()]
    return Traced(done, load_run(made))


def test_two_ranks_record_two_folders_under_one_run(two_ranks: Traced) -> None:
    done, run = two_ranks.answer, two_ranks.run
    ranks = [load_run(run.path / "ranks" / str(rank)) for rank in (0, 1)]
    assert [each.status for each in (run, *ranks)] == ["completed"] * 3
    updates = int(done.stdout.rpartition("updates=")[2].split()[0])
    assert [each.summary["steps"] for each in (run, *ranks)] == [updates] * 3
    assert run.steps["step_s"] == ranks[0].steps["step_s"], "the times are those of rank 0"
    assert run.steps["samples"] == [
        mine + theirs
        for mine, theirs in zip(ranks[0].steps["samples"], ranks[1].steps["samples"], strict=True)
    ]
    assert [each["rank"] for each in run.summary["ranks"]] == [0, 1]
    assert set(run.summary["slowest_rank"]) == set(run.summary["phases"])
    assert run.summary["samples"] == sum(run.steps["samples"])
    assert closes(run)
    assert len(ranks[1].telemetry) > 0
    assert done.stderr.count("Page: ") == 1, "rank 0 speaks for all"
    for rank in ranks:
        exposed, backward = rank.steps["communication_s"], rank.steps["backward_s"]
        assert all(0 <= part <= whole for part, whole in zip(exposed, backward, strict=True))
    assert run.summary["communication"]["mean_s"] > 0


def test_a_slow_rank_is_named_though_all_end_their_steps_together(two_ranks: Traced) -> None:
    run = two_ranks.run
    first, second = run.summary["ranks"]
    two_layers_s = 2 * SLOW_FORWARD_S
    assert first["communication"]["median_s"] > two_layers_s / 2, "it waits for the other"
    assert second["communication"]["median_s"] < first["communication"]["median_s"]
    assert run.summary["slowest_rank"]["forward"]["rank"] == 1
    finding = straggler(RunView(run))
    assert finding is not None
    assert finding.text.startswith(f"All ranks wait for rank 1 on {second['host']}")
    assert "mostly in `forward`" in finding.text


def test_a_rank_that_exchanged_nothing_says_why_nothing_is_known(tmp_path: Path) -> None:
    made = run_folder.create_rank(tmp_path, 0, "trace", {"rank": 0})
    summary = summarize(load_run(made.path), Measured())
    assert summary["communication"] is None
    assert summary["absent"]["communication"].startswith("no DistributedDataParallel")
