from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.records.run_reader import Run, load_run

EPOCHS = """\
epoch,split,loading_s,training_s,total_s,loss,accuracy,top5,samples,samples_per_s
0,test,0.02,0.1,0.13,2.31,0.1,0.5,1000,7692.3
1,train,0.5,10.25,10.8,1.875,0.3125,0.81,5000,462.96
1,test,0.02,0.1,0.13,1.5,0.425,0.9,1000,7692.3
2,train,0.125,9.5,9.66,1.25,0.5,0.925,5000,517.6
"""


def phase(share: float, median_s: float) -> dict[str, float]:
    return {
        "total_s": share * 20,
        "share": share,
        "mean_s": median_s,
        "median_s": median_s,
        "p95_s": median_s * 1.5,
        "p99_s": median_s * 3,
    }


# Shares of 1 in all, as those of a real run.
INFO: dict[str, Any] = {
    "schema": 1,
    "status": "completed",
    "spec": {"model": "lenet", "data": "shapes", "device": "cpu"},
    "instrument": {
        "overhead_per_step_s": 0.000032,
        "overhead_share": 0.0011,
        "beside_cpu_share": 0.003,
    },
    "summary": {
        "steps": 1250,
        "wall_s": 21.4,
        "dropped_epochs": [1],
        "accounted_share": 0.99987,
        "unattributed_share": 0.0125,
        "peak_memory_bytes": 450 * 2**20,
        "phases": {
            "data": phase(0.0875, 0.0007),
            "transfer": phase(0.0, 0.0),
            "forward": phase(0.3, 0.0048),
            "backward": phase(0.5, 0.008),
            "optimizer": phase(0.1, 0.0016),
            "other": phase(0.0125, 0.0002),
        },
    },
}


@pytest.fixture
def summary() -> dict[str, Any]:
    """The summary of the fixed run, to be changed."""
    return dict(INFO["summary"])


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Write a fixed run to `runs/20260102-030405-lenet-shapes` of the folder we then are in."""
    monkeypatch.chdir(tmp_path)

    def make(epochs: str = EPOCHS, **changes: Any) -> Run:
        path = Path("runs/20260102-030405-lenet-shapes")
        path.mkdir(parents=True)
        (path / "run.json").write_text(json.dumps({**INFO, **changes}))
        (path / "epochs.csv").write_text(epochs)
        return load_run(path)

    return make
