"""A lab that is stopped in the middle, and goes on in its folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from quiet_lab import QuietListener

from stepscope.errors import Interrupted, RequestError
from stepscope.experiments.labs import lab_runner
from stepscope.experiments.labs.lab_plan import LabRequest, read_sheet

SHEET = read_sheet("batch-norm")


class StopsAtTheSecond(QuietListener):
    def trying(self, trial, trials, left_s):
        if trial.index == 1:
            raise KeyboardInterrupt


def asked(folder: Path) -> LabRequest:
    sizes = {"samples": "64", "batch_size": "32", "epochs": "1"}
    machine = {"threads": "1", "device": "cpu"}
    flags = {**sizes, **machine, "data": "shapes", "model": "efficient:s2d4_w8", "lr": "0.01"}
    return LabRequest({**flags, "out": str(folder)}, 1.0, 1)


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    out = tmp_path_factory.mktemp("labs")
    with pytest.raises(Interrupted, match=r"stepscope lab --resume .*-lab-batch-norm") as raised:
        lab_runner.run_lab(SHEET, asked(out), StopsAtTheSecond())
    assert raised.value.exit_code == 130
    return (out / "latest").resolve()


@pytest.fixture
def stopped(stopped_once, tmp_path):
    return shutil.copytree(stopped_once, tmp_path / "lab", symlinks=True)


def written(folder: Path):
    return {path: path.stat().st_mtime_ns for path in folder.glob("*-trials*/trials/*/run.json")}


def test_what_was_run_is_not_run_again(stopped):
    before = written(stopped)
    assert len(before) == 1
    assert json.loads((stopped / "lab.json").read_text())["status"] == "interrupted"
    finding = lab_runner.resume(stopped, QuietListener())
    after = written(stopped)
    assert len(after) == len(finding["rows"]) == 2
    assert before.items() <= after.items()
    assert (finding["lab"], finding["path"]) == ("batch-norm", str(stopped.resolve()))
    record = json.loads((stopped / "lab.json").read_text())
    assert (record["status"], record["reason"]) == ("completed", None)
    assert record["answer"] == finding["answer"]

    assert lab_runner.resume(stopped, QuietListener()) == finding
    assert written(stopped) == after


def test_a_lab_of_other_settings_than_those_that_were_run_runs_its_own(stopped):
    record = json.loads((stopped / "lab.json").read_text())
    record["ask"]["flags"]["lr"] = "0.02"
    (stopped / "lab.json").write_text(json.dumps(record))
    before = written(stopped)
    lab_runner.resume(stopped, QuietListener())
    assert len(written(stopped)) == len(before) + 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lab": "<script>"}, "unknown lab"),
        ({"lab": "memory"}, "no recorded request"),
        ({"ask": None}, "damaged: .* wanted 'ask'"),
        ({"directory": "/nowhere"}, "/nowhere"),
    ],
)
def test_an_incomplete_record_is_refused(stopped, change, message):
    record = json.loads((stopped / "lab.json").read_text()) | change
    (stopped / "lab.json").write_text(json.dumps(record))
    with pytest.raises(RequestError, match=message):
        lab_runner.resume(stopped, QuietListener())


def test_a_folder_that_is_no_labs_is_refused(stepscope, tmp_path):
    done = stepscope("lab", "--resume", tmp_path)
    assert done.code == 2
    assert "lab.json" in done.err
    assert stepscope("lab", "batch-norm", "--resume", tmp_path).code == 2
