"""A disk that fills up, by a real limit on the size of files, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepscope.records import run_folder, run_reader

LIMIT_BYTES = 4096

BEGIN = """
import json, resource, signal, sys
from pathlib import Path
from stepscope.errors import StepscopeError
from stepscope.records.csv_log import CsvLog
from stepscope.records.run_folder import RunFolder, create

path = Path(sys.argv[1])

def fill_the_disk():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

def attempt(work):
    try:
        work()
    except StepscopeError as error:
        return {"code": error.exit_code, "kind": type(error).__name__, "text": str(error)}
    return None
"""


def on_a_full_disk(code: str, path: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return run_folder.create(tmp_path, "full", "run", {"model": "lenet"}).path


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def test_rows_written_before_the_disk_was_full_still_read(run_path: Path) -> None:
    said = on_a_full_disk(
        """
fill_the_disk()
log = CsvLog(path / "steps.csv")
count = 0
def work():
    global count
    while True:
        log.append(f"1,{count + 1},0.5,64,0.1,,0,0.1,0.1,0.1,0.1,0.5,2.25,,,,,,,,,full,,")
        log.flush()
        count += 1
error = attempt(work)
log.close()  # has nothing left to write, so it does not fail a second time
print(json.dumps({"error": error, "rows": count}))
""",
        run_path,
    )
    assert (said["error"]["code"], said["error"]["kind"]) == (5, "MachineError")
    assert "steps.csv" in said["error"]["text"]
    assert "stepscope resume" in said["error"]["text"]
    table = run_reader.load_run(run_path).steps
    assert said["rows"] > 10
    assert table["step"] == list(range(1, said["rows"] + 1))
    assert set(table["step_s"]) == {0.5}
    # The row that did not fit is there in part, and is what the reader left out.
    assert (run_path / "steps.csv").stat().st_size == LIMIT_BYTES


def test_an_event_that_finds_no_room_is_an_error_and_not_a_silence(run_path: Path) -> None:
    said = on_a_full_disk(
        """
folder = RunFolder(path)
fill_the_disk()
folder.add_event("torch_ready", 1.0)
print(json.dumps(attempt(lambda: folder.add_event("fault", 2.0, traceback="x" * 5000))))
""",
        run_path,
    )
    assert (said["code"], said["kind"]) == (5, "MachineError")
    assert "events.jsonl" in said["text"]
    assert [event["event"] for event in run_reader.load_run(run_path).events] == ["torch_ready"]


def test_a_run_on_a_full_disk_can_still_say_how_it_ended(run_path: Path) -> None:
    said = on_a_full_disk(
        """
fill_the_disk()
print(json.dumps(RunFolder(path).close(status="failed", reason="the disk is full")["reason"]))
""",
        run_path,
    )
    assert said == "the disk is full"
    assert run_reader.load_run(run_path).status == "failed"


def test_last_words_that_do_not_fit_leave_the_earlier_ones_whole(run_path: Path) -> None:
    before = names(run_path)
    said = on_a_full_disk(
        """
folder = RunFolder(path)
fill_the_disk()
print(json.dumps(attempt(lambda: folder.close(status="completed", reason="x" * 5000))))
""",
        run_path,
    )
    assert (said["code"], said["kind"]) == (5, "MachineError")
    assert "run.json" in said["text"]
    assert run_reader.load_run(run_path).status == "running"
    # The reserve was given up for the second attempt, and no half-written file is left.
    assert before - names(run_path) == {".reserve"}
    assert names(run_path) <= before


def test_a_folder_that_finds_no_room_is_not_made_in_part(tmp_path: Path) -> None:
    said = on_a_full_disk(
        """
fill_the_disk()
print(json.dumps(attempt(lambda: create(path, "full", "run", {}))))
""",
        tmp_path / "runs",
    )
    assert (said["code"], said["kind"]) == (5, "MachineError")
    assert list((tmp_path / "runs").iterdir()) == []
