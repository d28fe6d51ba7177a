"""`stepscope sweep` as a person calls it: whole, killed and resumed, with bad input."""

import json
import signal
from pathlib import Path

from polling import recorded_sweep, wait_for_trials

QUICK = ("--samples", 64, "--batch-size", 32, "--epochs", 1, "--no-evaluate", "--out", "runs")

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

lr = float(sys.argv[sys.argv.index("--lr") + 1]) if "--lr" in sys.argv else 0.1
print("lr is", lr)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
net = nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=lr)
for x, y in DataLoader(data, batch_size=8, shuffle=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
"""


def test_a_sweep_runs_every_setting_in_every_round_and_says_what_came_of_it(stepscope):
    sweep = stepscope.succeed(
        "sweep", *QUICK, "--over", "workers=0,1", "--repeats", 2, "--order-seed", 7, "--json"
    ).json
    assert sweep["status"] == "completed"
    assert sweep["seed"] == 7
    assert sorted((t["values"]["workers"], t["repeat"]) for t in sweep["trials"]) == [
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 2),
    ]
    for trial in sweep["trials"]:
        assert trial["status"] == "completed"
        assert trial["metrics"]["samples_per_s"] > 0
        run = json.loads((Path(sweep["path"]) / trial["run"] / "run.json").read_text())
        assert run["spec"]["workers"] == trial["values"]["workers"]
        assert run["environment"]["swap_used_bytes"] is not None
    assert [row["values"] for row in sweep["rows"]] == [{"workers": 0}, {"workers": 1}]


def test_a_sweep_killed_after_its_second_trial_and_resumed_makes_each_trial_once(stepscope):
    sweep = stepscope.start(
        "sweep", *QUICK, "--over", "workers=0,1", "--over", "batch_size=8,16", "--repeats", 1
    )
    folder = wait_for_trials(sweep, stepscope.folder / "runs", completed=2)
    sweep.send_signal(signal.SIGKILL)
    sweep.communicate()
    (folder / "trials" / ".new-of-a-killed-process").mkdir()
    before = recorded_sweep(folder)["trials"]
    done_before = [trial for trial in before if trial["status"] == "completed"]

    stepscope.succeed("sweep", "--resume", folder)
    after = recorded_sweep(folder)
    assert after["status"] == "completed"
    assert [trial["status"] for trial in after["trials"]] == ["completed"] * 4
    assert [trial for trial in after["trials"] if trial in done_before] == done_before
    assert len(list((folder / "trials").iterdir())) == 4
    assert stepscope("sweep", "--resume", folder).code == 0  # nothing is left to do
    assert recorded_sweep(folder) == after


def test_a_trial_that_takes_too_long_is_ended_and_the_next_one_made(stepscope):
    endless = ("--epochs", 10_000, "--samples", 320, "--no-evaluate", "--batch-size", 32)
    asked = ("--over", "lr=0.1,0.2", "--repeats", 1, "--time-limit", 1)

    trials = stepscope("sweep", *endless, *asked, "--json").json["trials"]

    assert [trial["status"] for trial in trials] == ["failed"] * 2
    assert all("time limit" in trial["reason"] for trial in trials)


def test_the_loader_alone_is_driven_without_training(stepscope):
    found = stepscope.succeed(
        "sweep", *QUICK, "--mode", "load", "--over", "workers=0,1", "--repeats", 1, "--json"
    ).json
    for trial in found["trials"]:
        assert trial["metrics"]["samples_per_s"] > 0
        assert trial["metrics"]["phases"]["forward"] == 0
        assert trial["metrics"]["phases"]["data"] > 0


def test_a_script_of_somebodys_own_is_swept_by_its_loader_and_its_flags(stepscope):
    (stepscope.folder / "train.py").write_text(SCRIPT)

    sweep = stepscope.succeed(
        "sweep", "--over", "workers=1", "--over", "arg:--lr=0.5,0.25", "--repeats", 1, "--json",
        "--", "train.py", "--lr", "0.1",
    ).json  # fmt: skip
    assert [trial["values"]["workers"] for trial in sweep["trials"]] == [1, 1]
    for trial in sweep["trials"]:
        assert trial["status"] == "completed", trial["reason"]
        folder = Path(sweep["path"]) / trial["run"]
        assert f"lr is {trial['values']['arg:--lr']}" in (folder / "output.txt").read_text()
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        loader = next(event for event in events if event["event"] == "loader")
        workers = {**loader["found"], **loader["set"]}["num_workers"]
        assert workers == trial["values"]["workers"]


def test_two_sweeps_in_one_folder_at_once_are_refused(stepscope):
    first = stepscope.start("sweep", *QUICK, "--over", "workers=0,1", "--repeats", 50)
    try:
        folder = wait_for_trials(first, stepscope.folder / "runs", completed=1)
        second = stepscope("sweep", "--resume", folder)
    finally:
        first.send_signal(signal.SIGINT)
        _, words = first.communicate()

    assert second.is_refused(2, "still running")
    assert first.returncode == 130
    assert "--resume" in words
    assert recorded_sweep(folder)["status"] == "interrupted"
    assert "Page: " in words
    assert "of 100 trials completed" in (folder / "report.html").read_text(encoding="utf-8")


def test_the_folder_of_another_sweep_is_no_place_for_a_new_one(stepscope):
    folder = stepscope.folder / "old"
    folder.mkdir()
    (folder / "sweep.json").write_text('{"schema": 1, "trials": []}')

    answer = stepscope("sweep", "--over", "workers=0,1", "--out", "old")

    assert answer.is_refused(2, "the folder of a sweep")
