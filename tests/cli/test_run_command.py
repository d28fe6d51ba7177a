"""`stepscope run` from outside: what a person gets, and what stays in the folder."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys

import pytest
from stepscope_command import TINY, Answer, Stepscope, closes

from stepscope.records.run_reader import load_run


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Stepscope:
    return Stepscope(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def alone(here: Stepscope) -> Answer:
    """A run without workers, as JSON."""
    return here("run", *TINY, "--name", "first", "--json")


@pytest.fixture(scope="module")
def with_workers(here: Stepscope) -> Answer:
    """A run that lasts for several samples of telemetry: its workers sleep."""
    return here("run", *TINY, "--workers", 2, "--pipeline-delay-ms", 4, "--json")


def test_a_run_leaves_the_whole_folder_and_says_where_the_time_went(stepscope, tiny):
    answer = stepscope.succeed("run", *tiny)
    for word in ("step ", "samples/s", "data", "forward", "backward", "optimizer", "Page: "):
        assert word in answer.out
    run = load_run(stepscope.folder / "runs" / "latest")
    names = {path.name for path in run.path.iterdir()}
    assert names == {
        "run.json",
        "steps.csv",
        "epochs.csv",
        "records.csv",
        "telemetry.csv",
        "energy.csv",
        "events.jsonl",
        "checkpoint.pt",
        "report.html",
    }
    assert run.summary["verdict"]["text"].split()[:3] == answer.out.split()[:3]
    assert "stepscope report runs/latest" in answer.out
    assert run.status == "completed"
    assert len(run.steps) == 20
    assert run.epochs["split"] == ["test", "train", "test", "train", "test"]
    assert run.epochs["epoch"] == [0, 1, 1, 2, 2]


def test_json_is_one_object_and_nothing_else(here, alone):
    info = alone.json
    assert alone.code == 0
    assert {"schema", "id", "name", "kind", "status", "reason", "spec", "environment"} < set(info)
    assert (info["kind"], info["status"], info["reason"]) == ("run", "completed", None)
    assert json.loads((here.folder / info["path"] / "run.json").read_text())["id"] == info["id"]
    assert "epoch 2" in alone.err, "progress goes to standard error"


def test_the_summary_accounts_for_the_time(here, with_workers):
    summary = with_workers.json["summary"]
    assert closes(load_run(here.folder / with_workers.json["path"]), within=0.01)
    assert sum(phase["share"] for phase in summary["phases"].values()) == pytest.approx(1)
    assert summary["dropped_epochs"] == [1]
    assert (summary["epochs"], summary["steps"], summary["samples"]) == (2, 20, 640)
    assert summary["peak_memory_bytes"] > 50e6
    for name, reason in summary["absent"].items():
        assert summary[name] is None
        assert reason


def test_the_resolved_spec_is_recorded_and_can_be_repeated(here, alone):
    first = alone.json
    assert first["spec"]["device"] != "auto"
    assert first["spec"]["memory_format"] != "auto"
    again = here("run", f"{first['path']}/run.json", "--name", "again", "--json").json
    assert (again["name"], again["status"]) == ("again", "completed")
    assert {**again["spec"], "name": "first"} == first["spec"]
    assert (
        load_run(here.folder / again["path"]).steps["loss"]
        == load_run(here.folder / first["path"]).steps["loss"]
    )


def test_records_are_to_the_letter(stepscope):
    answer = stepscope(
        "run", "--samples", 840, "--batch-size", 4, "--epochs", 2, "--out", "runs", "--json"
    )
    path = stepscope.folder / answer.json["path"]
    header, *rows = (path / "records.csv").read_text().splitlines()
    assert header == "type,epoch,start,loading,duration,value1,value2"
    number = r"\d+\.\d{6}"
    for row in rows:
        assert re.fullmatch(rf"\d+,\d+,{number},{number},{number},{number},{number}", row)
    parsed = [[float(field) for field in row] for row in csv.reader(rows)]
    assert [row[0] for row in parsed] == [1, 2, 2, 2, 0, 1, 2, 2, 2, 0, 1]
    assert [row[1] for row in parsed] == [0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]
    batches = [row for row in parsed if row[0] == 2]
    assert [row[5] for row in batches] == [100, 200, 210] * 2
    assert {row[6] for row in batches} == {210}
    first, second = batches[:3], batches[3:]
    for epoch in (first, second):
        assert len({row[2] for row in epoch}) == 1, "all count from the epoch's own start"
        assert epoch[0][4] < epoch[1][4] < epoch[2][4], "and add up over the epoch"
    assert second[0][4] < first[2][4], "but not over epochs"
    table = list(load_run(path).epochs.rows())
    for epoch in (row for row in parsed if row[0] in (0, 1)):
        split = "train" if epoch[0] == 0 else "test"
        seen = next(r for r in table if r["split"] == split and r["epoch"] == epoch[1])
        assert epoch[3] == pytest.approx(seen["loading_s"], abs=1e-6)
        assert epoch[4] == pytest.approx(seen["total_s"], abs=1e-6)
        assert epoch[5] == pytest.approx(seen["accuracy"], abs=1e-6)
        assert epoch[6] == pytest.approx(seen["top5"], abs=1e-6)
        assert epoch[5] <= epoch[6] <= 1


def test_telemetry_is_sampled_from_outside(here, with_workers):
    telemetry = load_run(here.folder / with_workers.json["path"]).telemetry
    assert len(telemetry) >= 2
    assert telemetry["time_s"] == sorted(telemetry["time_s"])
    assert max(telemetry["rss_bytes"]) > 50e6
    cpu = telemetry["main_cpu_s"]
    assert cpu == sorted(cpu)
    assert cpu[-1] > 0


def test_a_file_called_like_a_library_in_the_working_folder_does_no_harm(stepscope, tiny):
    (stepscope.folder / "random.py").write_text("raise RuntimeError('not the real one')\n")
    code = "import sys; sys.path.pop(0); from stepscope.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", *map(str, tiny), "--max-steps", "2"],
        cwd=stepscope.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_a_model_prints_is_shown_and_does_not_spoil_the_json(stepscope, tiny):
    (stepscope.folder / "loud.py").write_text(
        "from torch import nn\n"
        "def net(num_classes):\n"
        "    print('hello from the model')\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))\n"
    )
    answer = stepscope("run", *tiny, "--model", "loud:net", "--json")
    assert (answer.json["status"], answer.json["name"]) == ("completed", "loud:net-shapes")
    assert "hello from the model" in answer.err


def test_real_cifar10_trains(stepscope, shared_data):
    found = stepscope.succeed(
        "run", "--data", "cifar10", "--data-dir", shared_data, "--samples", 640, "--json"
    ).json
    assert found["summary"]["samples"] == 3 * 640


@pytest.mark.long
def test_lenet_learns_cifar10_in_three_epochs(stepscope, shared_data):
    answer = stepscope(
        *("run", "--data", "cifar10", "--data-dir", shared_data, "--model", "lenet"),
        *("--epochs", 3, "--batch-size", 64, "--lr", 0.01, "--json"),
    )
    summary = answer.json["summary"]
    assert summary["test_accuracy"] >= 0.50
    assert 0.99 <= summary["accounted_share"] <= 1.01
    assert summary["unattributed_share"] <= 0.03
    epochs = load_run(stepscope.folder / answer.json["path"]).epochs
    assert (epochs["split"].count("train"), epochs["split"].count("test")) == (3, 4)
