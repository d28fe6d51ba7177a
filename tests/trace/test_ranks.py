"""A script under torchrun: every rank its folder, one run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from as_a_person import ENVIRONMENT

from stepscope.records.reader import load_run

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "ddp.py"


def test_two_ranks_record_two_folders_under_one_run(tmp_path: Path) -> None:
    here = Path(sys.executable).parent
    done = subprocess.run(
        [
            *(here / "torchrun", "--standalone", "--nproc-per-node", "2"),
            *(here / "stepscope", "trace", "--out", tmp_path / "runs", SCRIPT),
        ],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    [folder] = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    run = load_run(folder)
    ranks = [load_run(folder / "ranks" / str(rank)) for rank in (0, 1)]
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
    assert 0.98 < run.summary["closure"] < 1.02
    assert len(ranks[1].telemetry) > 0
    assert done.stderr.count("run folder:") == 1, "rank 0 speaks for all"
