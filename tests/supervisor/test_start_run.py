"""A run of each kind from request to closed folder, each in a process of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepscope.errors import RequestError
from stepscope.records.run_reader import load_run
from stepscope.settings.load_settings import validate
from stepscope.supervisor import start_run


class Nobody:
    def message(self, message: dict[str, Any]) -> None: ...
    def output(self, line: str) -> None: ...
    def stopping(self) -> None: ...


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    spec = validate({"samples": 128, "batch_size": 32, "epochs": 2, "out": str(out)})
    path, outcome = start_run.start(spec, Nobody(), kind="load")
    assert outcome.exit_code == 0, outcome.reason
    return load_run(path)


def test_a_run_that_only_loads_is_of_that_kind_and_completes(loaded):
    assert (loaded.info["kind"], loaded.status) == ("load", "completed")
    assert len(loaded.steps) == 8
    assert loaded.summary["samples_per_s"] > 0
    assert loaded.summary["absent"]["train_accuracy"].startswith("nothing was trained")
    assert loaded.summary["absent"]["memory_bill"].startswith("nothing was trained")


def test_how_much_is_swapped_out_when_a_run_begins_is_recorded(loaded):
    environment = loaded.info["environment"]
    assert 0 <= environment["swap_used_bytes"] <= environment["swap_bytes"]


def test_one_that_is_done_is_left_as_it_is(loaded):
    path, outcome = start_run.resume(loaded.path, Nobody())
    assert (path, outcome.exit_code) == (loaded.path, 0)


def test_a_trace_cannot_go_on(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "kind": "trace"}))
    with pytest.raises(RequestError, match="only a run can go on"):
        start_run.resume(tmp_path, Nobody())
