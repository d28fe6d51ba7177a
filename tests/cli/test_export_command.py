"""`stepscope export` from outside: a real run in every format, and all the ways to fail."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
from stepscope_command import TINY, Stepscope

from stepscope.records.run_folder import create
from stepscope.report.export import tensorboard_events


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run with workers; tests copy what they change."""
    stepscope = Stepscope(tmp_path_factory.mktemp("finished"))
    found = stepscope.succeed("run", *TINY, "--workers", 2, "--json").json
    return (stepscope.folder / found["path"]).resolve()


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "run"
    subprocess.run(["cp", "-r", finished, copy], check=True)
    return copy


def trace_in(path: Path) -> list[dict[str, Any]]:
    events = json.loads(path.read_text())["traceEvents"]
    assert isinstance(events, list)
    return events


def test_a_trace_is_written_into_the_run_folder(stepscope, run):
    answer = stepscope.succeed("export", run, "--to", "chrome")
    assert str(run / "trace.json") in answer.out
    assert "ui.perfetto.dev" in answer.out
    shown = [event["name"] for event in trace_in(run / "trace.json")]
    assert shown.count("backward") == shown.count("step 1") * 10 == 20
    assert {"epoch 2", "test before training", "test after epoch 2", "checkpoint"} <= set(shown)
    named = [e["args"]["name"] for e in trace_in(run / "trace.json") if e["name"] == "thread_name"]
    workers = ["loader: worker 0", "loader: worker 1"]
    assert named == ["epochs", "steps", "phases", "events", *workers]
    assert not list(run.glob(".*")), "nothing half done is left"


def test_a_hyphen_means_standard_output(stepscope, run):
    answer = stepscope("export", run, "--output", "-")
    assert answer.code == 0
    assert len(json.loads(answer.out)["traceEvents"]) > 100
    assert not (run / "trace.json").exists()


@pytest.mark.parametrize(
    ("to", "into", "counted"),
    [
        ("chrome", "trace.json", "events"),
        ("tsv", "accuracy.tsv", "rows"),
        ("parquet", "parquet/steps.parquet", "rows"),
        ("tensorboard", f"tensorboard/{tensorboard_events.FILE}", "events"),
    ],
)
def test_a_real_run_is_written_in_every_format_and_json_is_one_object(
    stepscope, run, to, into, counted
):
    found = stepscope.succeed("export", run, "--to", to, "--json").json
    folder, _, file = into.rpartition("/")
    assert found.keys() == {"path", counted}
    assert found["path"] == str(run / (folder or file))
    assert found[counted] >= 3
    assert (run / into).stat().st_size > 100
    if to == "chrome":
        assert found["events"] == len(trace_in(run / into))


@pytest.mark.parametrize("to", ["parquet", "tensorboard"])
def test_a_format_with_a_folder_is_written_to_nothing_else(stepscope, run, to):
    answer = stepscope("export", run, "--to", to, "--output", "-")
    assert answer.is_refused(2, "a folder, not to standard output")
    (stepscope.folder / "taken").write_text("a file")
    for output in ("missing/folder", "taken"):
        answer = stepscope("export", run, "--to", to, "--output", output)
        assert answer.is_refused(2, "cannot write", "--output DIR")
    assert (stepscope.folder / "taken").read_text() == "a file"


def test_a_folder_is_written_again_and_what_else_is_in_it_stays(stepscope, run):
    (stepscope.folder / "tables").mkdir()
    (stepscope.folder / "tables" / "mine.txt").write_text("mine")
    for _ in range(2):
        assert stepscope("export", run, "--to", "parquet", "--output", "tables").code == 0
    names = sorted(each.name for each in (stepscope.folder / "tables").iterdir())
    assert names == ["epochs.parquet", "mine.txt", "steps.parquet", "telemetry.parquet"]


def test_a_run_that_goes_on_is_exported_as_far_as_it_is(stepscope, run):
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, "status": "running", "summary": {}}))
    with (run / "steps.csv").open("a") as file:
        file.write("3,1,4.5,32,0.0")
    answer = stepscope("export", run, "--json")
    assert answer.code == 0
    assert "has not been closed" in answer.err
    assert answer.json["events"] == len(trace_in(run / "trace.json"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "nowhere is not a run folder"),
        ((), "RUN"),
        (("run", "--to", "crome"), "Did you mean 'chrome'?"),
        (("run", "--to", "xyz"), "Known: chrome, parquet, tensorboard, tsv."),
        (("run", "--output", ""), "--output: wanted a file, a folder or -, found ''"),
        (("run", "--output", "--json"), "--output: wanted a file"),
        (("run", "--output", "run/steps.csv"), "part of the run"),
        (("run", "--json", "--output", "-"), "both use standard output"),
    ],
)
def test_a_wrong_request_ends_with_2(stepscope, run, arguments, words):
    before = (run / "steps.csv").read_bytes()
    answer = stepscope("export", *arguments)
    assert answer.code == 2
    assert words in (answer.json["error"] if "--json" in arguments else answer.err)
    assert (run / "steps.csv").read_bytes() == before


def test_a_run_without_a_step_ends_with_1_and_leaves_no_file(stepscope):
    empty = create(stepscope.folder, "empty", "run", {}).path
    answer = stepscope("export", empty)
    assert answer.is_refused(1, "no training step is recorded", "Try again")
    assert stepscope("export", empty, "--output", "-").is_refused(1)
    assert not (empty / "trace.json").exists()
    assert stepscope("export", empty, "--json").json["exit_code"] == 1
    before = {each.name for each in empty.iterdir()}
    for to, wanted in (("parquet", "row"), ("tensorboard", "training step"), ("tsv", "test")):
        assert stepscope("export", empty, "--to", to).is_refused(1, f"no {wanted} is recorded")
    assert {each.name for each in empty.iterdir()} == before, "no empty folder is left"


def test_a_file_that_cannot_be_written_ends_with_2(stepscope, run):
    (stepscope.folder / "taken").write_text("a file")
    for output in ("missing/trace.json", "taken/trace.json", "."):
        answer = stepscope("export", run, "--output", output)
        assert answer.is_refused(2, "cannot write", "--output FILE")


def test_a_table_that_cannot_be_read_ends_with_2(stepscope, run):
    (run / "steps.csv").unlink()
    (run / "steps.csv").mkdir()
    assert stepscope("export", run).is_refused(2, "cannot read the run", "steps.csv")
    assert not (run / "trace.json").exists()


def test_a_full_disk_ends_with_5_and_keeps_the_earlier_trace(stepscope, run):
    (run / "trace.json").write_text("old")
    answer = stepscope.as_process(
        *("export", run),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        env={"PYTHONDONTWRITEBYTECODE": "1"},  # a compiled module would be cut off too
    )
    assert answer.is_refused(5, "cannot write", "trace.json")
    assert (run / "trace.json").read_text() == "old"
    assert not list(run.glob(".*"))


def test_standard_output_may_be_full_or_cut_short(stepscope, run):
    full = stepscope.through_a_shell(f"stepscope export {run} --output - > /dev/full")
    assert full.returncode == 5
    assert "standard output" in full.stderr
    assert stepscope.through_a_shell(f"stepscope export {run} --output - | head -c 9").stderr == ""


def test_what_is_no_file_is_written_to_and_not_replaced(stepscope, run):
    pipe = stepscope.folder / "pipe"
    os.mkfifo(pipe)
    done = stepscope.through_a_shell(f"cat {pipe} & stepscope export {run} --output {pipe}; wait")
    assert done.returncode == 0, done.stderr
    assert '"traceEvents"' in done.stdout
    assert pipe.is_fifo()
    assert stepscope("export", run, "--output", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()
