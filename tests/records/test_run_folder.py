"""The run folder as it is written: its files, its names, its link, its last words."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

from stepscope.errors import MachineError, RequestError
from stepscope.records import run_folder, run_reader, schema
from stepscope.records.record_validation import clean
from stepscope.records.run_folder import RunFolder
from stepscope.records.run_reader import load_run

# DESIGN.md and EXPERIMENTS.md 13, to the letter.
HEADERS = {
    "steps.csv": "epoch,step,start_s,samples,data_s,load_s,transfer_s,forward_s,backward_s,"
    "optimizer_s,other_s,step_s,loss,load_cpu_s,transfer_device_s,forward_device_s,"
    "backward_device_s,optimizer_device_s,idle_device_s,load_start_s,load_worker,detail,"
    "communication_s,other_device_s\n",
    "epochs.csv": "epoch,split,start_s,loader_start_s,loader_stop_s,loading_s,training_s,total_s,"
    "loss,accuracy,top5,samples,samples_per_s\n",
    "records.csv": "type,epoch,start,loading,duration,value1,value2\n",
    "telemetry.csv": "time_s,pss_bytes,rss_bytes,workers_private_bytes,workers,swap_bytes,"
    "available_bytes,main_cpu_s,workers_cpu_s,read_bytes,major_faults,pressure_cpu,pressure_io,"
    "pressure_memory,cpu_mhz,device_memory_bytes,device_percent,device_mhz,power_w,"
    "temperature_c,machine_cpu_s\n",
    "energy.csv": "time_s,sensor,energy_j,power_w\n",
    "events.jsonl": "",
}
HOSTILE_NAMES = [
    "<script>alert(1)</script>",
    "../../etc",
    "a/b",
    "/etc/passwd",
    "..",
    ".",
    "",
    "///",
    "🦆🦆",
    "name\nwith\x00lines",
    "--out=/",
    "n" * 300,
    "\ud800",
]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "runs"


@pytest.fixture
def frozen_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20260102-030405")


def make(out: Path, name: str = "lenet-shapes") -> RunFolder:
    return run_folder.create(out, name, "run", {"model": "lenet"})


def visible(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}


def test_a_new_folder_has_every_file_with_its_header_to_the_letter(out: Path) -> None:
    made = make(out)
    assert visible(made.path) == {*HEADERS, "run.json"}
    assert {name: (made.path / name).read_text() for name in HEADERS} == HEADERS


def test_a_new_folder_says_that_it_is_running_and_what_was_asked(out: Path) -> None:
    before = time.time()
    info = make(out, "first try").read_info()
    assert info["schema"] == 1
    assert (info["name"], info["kind"]) == ("first try", "run")
    assert (info["status"], info["reason"]) == ("running", None)
    assert info["spec"] == {"model": "lenet"}
    assert before - 1 <= info["started_unix_s"] <= time.time()
    assert {"environment", "instrument", "summary"} <= set(info)
    run = run_reader.load_run(out / "latest")
    assert (len(run.steps), len(run.epochs), len(run.telemetry), run.events) == (0, 0, 0, [])


def test_latest_points_to_the_newest_by_a_relative_link(out: Path) -> None:
    out.mkdir(parents=True)
    (out / "latest").symlink_to("gone")
    first = make(out, "first")
    assert (out / "latest").resolve() == first.path.resolve()
    second = make(out, "second")
    assert (out / "latest").resolve() == second.path.resolve()
    # Relative, so that the folder may be moved or mounted elsewhere.
    assert str((out / "latest").readlink()) == second.path.name
    assert run_reader.load_run(out / "latest").info["name"] == "second"


@pytest.mark.usefixtures("frozen_second")
def test_runs_of_the_same_second_and_name_get_a_number_and_keep_apart(out: Path) -> None:
    made = [make(out, "twin try") for _ in range(3)]
    ids = [each.read_info()["id"] for each in made]
    assert ids == [f"20260102-030405-twin-try{suffix}" for suffix in ("", "-2", "-3")]
    assert ids == [each.path.name for each in made]
    assert visible(out) == {*ids, "latest"}


@pytest.mark.usefixtures("frozen_second")
def test_a_file_of_the_name_that_was_wanted_is_left_alone(out: Path) -> None:
    out.mkdir(parents=True)
    (out / "20260102-030405-twin").write_text("mine")
    assert make(out, "twin").path.name == "20260102-030405-twin-2"
    assert (out / "20260102-030405-twin").read_text() == "mine"


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_name_stays_inside_out_and_is_kept_as_it_was(out: Path, name: str) -> None:
    made = make(out, name)
    assert made.path.resolve().parent == out.resolve()
    assert {entry.name for entry in out.iterdir()} == {made.path.name, "latest"}
    assert all(char.isascii() and (char.isalnum() or char in "-._") for char in made.path.name)
    assert len(made.path.name) <= 120
    assert run_reader.load_run(made.path).info["name"] == clean(name)
    if name in ("", "///", "🦆🦆", ".."):
        assert made.path.name.endswith("-run"), "nothing of the name can be used"


@pytest.mark.parametrize("below", ["file", "file/sub", "file/sub/deeper", "n" * 300])
def test_an_output_folder_below_a_file_or_with_too_long_a_name_is_a_wrong_request(
    tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RequestError, match="--out DIR") as caught:
        make(tmp_path / below)
    assert caught.value.exit_code == 2
    assert str(tmp_path / below) in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_latest_that_is_no_link_of_ours_is_left_alone(out: Path, kind: str) -> None:
    notes = out / "latest" / ("notes.txt" if kind == "folder" else "")
    notes.parent.mkdir(parents=True)
    notes.write_text("mine")
    made = make(out)
    assert not (out / "latest").is_symlink()
    assert notes.read_text() == "mine"
    assert {entry.name for entry in out.iterdir()} == {made.path.name, "latest"}


def test_run_json_is_replaced_whole_and_nothing_is_left_beside_it(out: Path) -> None:
    made = make(out)
    before = {entry.name for entry in made.path.iterdir()}
    number = (made.path / "run.json").stat().st_ino
    held = (made.path / "run.json").open(encoding="utf-8")
    with held:
        made.update_info(status="interrupted", reason="by hand")
        # Whoever had it open still reads the old one, whole: it was replaced, not written over.
        assert json.load(held)["status"] == "running"
    assert (made.path / "run.json").stat().st_ino != number
    assert made.read_info()["reason"] == "by hand"
    assert made.read_info()["spec"] == {"model": "lenet"}
    assert {entry.name for entry in made.path.iterdir()} == before


def test_what_json_cannot_say_is_refused_and_the_old_run_json_stays(out: Path) -> None:
    made = make(out)
    before = {entry.name for entry in made.path.iterdir()}
    with pytest.raises(ValueError, match="not JSON compliant"):
        made.update_info(summary={"accounted_share": float("nan")})
    assert made.read_info()["summary"] == {}
    assert {entry.name for entry in made.path.iterdir()} == before


def test_events_are_appended_in_order_and_read_at_once(out: Path) -> None:
    made = make(out)
    made.add_event("fault", 1.23456789, traceback="")
    made.add_event("resume", 2.0, after="failed")
    assert run_reader.load_run(made.path).events == [
        {"time_s": 1.234568, "event": "fault", "traceback": ""},
        {"time_s": 2.0, "event": "resume", "after": "failed"},
    ]


@pytest.mark.parametrize("found", [None, '{"time_s": 2.0, "event": "torch_ready"}\n{"time_s": 2.'])
def test_an_event_is_kept_after_one_cut_short_and_in_a_new_file(
    out: Path, found: str | None
) -> None:
    file = make(out).path / "events.jsonl"
    file.unlink()
    if found is not None:
        file.write_text(found)
    RunFolder(file.parent).add_event("resume", 3.0, after="failed")
    kinds = [event["event"] for event in run_reader.load_run(file.parent).events]
    assert kinds == (["resume"] if found is None else ["torch_ready", "resume"])


def test_an_open_folder_keeps_a_reserve_and_closing_gives_it_up(out: Path) -> None:
    made = make(out)
    hidden = [entry for entry in made.path.iterdir() if entry.name.startswith(".")]
    assert len(hidden) == 1
    assert hidden[0].stat().st_size >= 64 * 1024
    info = made.close(status=schema.COMPLETED, summary={"steps": 3})
    assert {entry.name for entry in made.path.iterdir()} == {*HEADERS, "run.json"}
    assert info == made.read_info()
    assert (info["status"], info["summary"]) == ("completed", {"steps": 3})
    assert made.close(status=schema.FAILED)["status"] == "failed", "without a reserve too"


@pytest.mark.skipif(sys.platform != "linux", reason="the new name is read from /proc")
def test_a_folder_that_is_renamed_while_it_is_held_is_found_again(out: Path) -> None:
    made = make(out)
    with made.held():
        renamed = made.path.rename(out / "renamed")
        made.add_event("torch_ready", 1.0)
        assert made.update_info(status=schema.COMPLETED)["status"] == "completed"
        assert made.path == renamed
    assert made.path == renamed, "afterwards too"
    assert [event["event"] for event in load_run(renamed).events] == ["torch_ready"]


def test_a_folder_that_is_removed_while_it_is_held_is_named(out: Path) -> None:
    made = make(out)
    before = made.path
    with made.held():
        made.check_is_there()
        shutil.rmtree(before)
        for use in (made.check_is_there, made.read_info, lambda: made.add_event("x", 1.0)):
            with pytest.raises(MachineError, match=f"{before}/run.json was removed"):
                use()
