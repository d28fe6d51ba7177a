"""A run of each kind from request to closed folder, each in a process of its own."""

import json
import subprocess
import sys

import pytest

from stepscope.errors import RequestError
from stepscope.experiments.workload import TrainingWorkload, TrialRequest
from stepscope.records.run_reader import load_run
from stepscope.supervisor import start_run
from stepscope.supervisor.child_supervisor import SilentListener


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "loaded"
    loading = TrainingWorkload({"samples": 128, "batch_size": 32, "epochs": 2}, mode="load")
    outcome = loading.run({}, TrialRequest(path, SilentListener()))
    assert outcome.exit_code == 0, outcome.reason
    return load_run(path)


def test_a_run_that_only_loads_is_of_that_kind_and_completes(loaded):
    assert (loaded.info["kind"], loaded.status) == ("load", "completed")
    assert len(loaded.steps) == 8
    assert loaded.summary["samples_per_s"] > 0
    assert loaded.summary["absent"]["train_accuracy"].startswith("nothing was trained")
    assert loaded.summary["absent"]["memory_bill"].startswith("nothing was trained")
    environment = loaded.info["environment"]
    assert 0 <= environment["swap_used_bytes"] <= environment["swap_bytes"]


def test_a_trace_cannot_go_on(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "kind": "trace"}))
    with pytest.raises(RequestError, match="only a run can be resumed"):
        start_run.resume(tmp_path, SilentListener())


def test_a_run_of_one_process_imports_nothing_of_ranks():
    code = "import sys, stepscope.cli.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    of_ranks = ("stepscope.supervisor.rank_", "stepscope.supervisor.torchrun", "torch")
    assert [name for name in done.stdout.split() if name.startswith(of_ranks)] == []
