"""`stepscope lab` from outside."""

import json
import re
import signal
import sys

import pytest
from polling import wait_until

from stepscope.experiments.labs.lab_runner import labs

SMALL = ("--samples", 640, "--batch-size", 64, "--threads", 1)


def test_without_a_name_the_labs_are_listed(stepscope):
    answer = stepscope.succeed("lab")
    assert [line.split()[0] for line in answer.out.splitlines()] == list(labs())
    listed = stepscope("lab", "--json").json["labs"]
    assert {lab["name"]: lab["about"] for lab in listed} == labs()


def test_the_run_survives_a_lost_worker(stepscope):
    # A limit that never binds: then the lab ends a worker itself, whatever this machine does.
    # An epoch lasts long enough for that.
    flags = ("--memory-limit", "64GiB", "--validation", 64, "--pipeline-delay-ms", 2)
    few = ("--samples", 320, "--batch-size", 64, "--threads", 1)
    answer = stepscope.succeed("lab", "second-epoch", *few, *flags, "--json")
    found = answer.json
    assert found["holds"]
    assert found["with_limit"]["status"] == "completed"
    assert found["with_limit"]["samples_by_epoch"] == {"1": 256, "2": 256}
    assert found["same_steps"]
    assert found["same_losses"]
    assert (found["workers_ended_by_guard"], found["workers_ended_by_hand"]) == (0, 1)
    assert "survived" in found["answer"]
    (fallback,) = found["with_limit"]["fallbacks"]
    assert (fallback["from"], fallback["to"]) == (2, 1)
    assert found["forewarned"]["workers_that_fit"] < 2


def test_a_lab_has_a_table_a_plot_as_text_and_as_files_and_an_answer(stepscope):
    few = ("--model", "lenet", "--samples", 96, "--batch-size", 32, "--workers", 0)
    answer = stepscope.succeed("lab", "epoch-times", *few, "--scale", 0.02)
    for text in ("total", "█ loading", "An epoch takes", "96 of 50,000 samples", "model lenet"):
        assert text in answer.out
    assert "Missing cifar10: used shapes instead" in answer.out
    (folder,) = re.findall(r"plots: (.+)", answer.out)
    drawn = {file.name for file in (stepscope.folder / folder).glob("epochs.*")}
    assert drawn == {"epochs.svg", "epochs.png"}
    assert all(len(line) <= 80 for line in answer.out.splitlines() if "█" not in line)


def test_the_finding_of_a_sheet_is_one_flat_object_and_recorded(stepscope):
    answer = stepscope.succeed("lab", "model", "--json")
    found = answer.json
    assert {"lab", "answer", "holds", "scale", "missing", "rows", "plots", "path"} <= {*found}
    recorded = json.loads((stepscope.folder / found["path"] / "lab.json").read_text())
    assert recorded["status"] == "completed"
    assert recorded["rows"] == found["rows"]
    assert recorded["plots"] == found["plots"]


def test_without_the_extra_for_charts_the_rest_is_done_and_the_plots_are_missing(
    stepscope, monkeypatch
):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    found = stepscope.succeed("lab", "model", "--json").json
    assert found["plots"] == []
    (lacking,) = found["missing"]
    assert "stepscope[report]" in lacking["reason"]


@pytest.mark.parametrize(
    "since", ["lab.json", "latest/sweep.json", "latest/trials/*/steps.csv"], ids=lambda each: each
)
def test_a_lab_that_is_stopped_at_any_moment_says_so_and_how_it_goes_on(stepscope, since):
    few = ("--model", "lenet", "--samples", 6400, "--batch-size", 8, "--workers", 0)
    process = stepscope.start("lab", "epoch-times", *few)
    wait_until(lambda: [*stepscope.folder.glob(f"runs/latest/{since}")])
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "interrupted" in err
    assert "stepscope lab --resume runs/" in err
    recorded = json.loads((stepscope.folder / "runs" / "latest" / "lab.json").read_text())
    assert recorded["status"] == "interrupted"


@pytest.mark.long
def test_under_a_limit_that_binds_the_run_survives_as_well(stepscope):
    found = stepscope.succeed("lab", "second-epoch", "--json").json
    assert found["workers_ended_by_guard"] + found["workers_ended_by_hand"] > 0
    assert {*found["with_limit"]["samples_by_epoch"].values()} == {found["training_samples"]}


@pytest.mark.long
def test_lab_memory_from_the_command_line(stepscope):
    found = stepscope.succeed("lab", "memory", *SMALL, "--workers", 1, "--json").json
    names = [remedy["name"] for remedy in found["remedies"]]
    assert {"step inside backward()", "keep workers", "no workers"} <= {*names}
    saved = [each["saved_bytes"] for each in found["remedies"] if each["applies"]]
    assert saved == sorted(saved, reverse=True)
    shown = stepscope.succeed("lab", "memory", *SMALL)
    for text in ("zero_grad", "remedy", "The training took"):
        assert text in shown.out
