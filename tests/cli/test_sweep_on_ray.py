"""`stepscope sweep` and `accel search` with `--on ray`, on clusters of real nodes that die."""

import json
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from local_ray_cluster import kill
from polling import recorded_sweep, wait_for_trials

from stepscope.hardware.conditions import clock_source

QUICK = ("--samples", 64, "--batch-size", 32, "--epochs", 1, "--no-evaluate", "--out", "runs")
EIGHT = ("--over", "workers=0,1", "--repeats", 4)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_missed_before_anything_starts(stepscope, address):
    answer = stepscope("sweep", "--over", "workers=0,1", "--on", "ray", "--address", address)
    assert answer.is_refused(5, f"no Ray cluster answers at {address}")
    assert not (stepscope.folder / "runs").exists()


@pytest.mark.long
@pytest.mark.parametrize("end", [kill, subprocess.Popen.terminate], ids=["killed", "told to stop"])
def test_a_node_ended_in_the_middle_of_eight_trials_loses_none_and_makes_none_twice(
    stepscope, cluster, end
):
    cluster.add()
    doomed = cluster.add()
    sweep = stepscope.start(
        "sweep", *QUICK, *EIGHT, "--on", "ray", "--address", cluster.address, "--json"
    )
    wait_for_trials(sweep, stepscope.folder / "runs", completed=3)
    end(doomed)
    out, err = sweep.communicate(timeout=300)

    assert sweep.returncode == 0, err
    done = json.loads(out)  # whatever Ray prints of the node's death is elsewhere
    assert [trial["status"] for trial in done["trials"]] == ["completed"] * 8
    assert len({trial["node"] for trial in done["trials"]}) == 2
    assert len({trial["node_kind"] for trial in done["trials"]}) == 1
    runs = [Path(done["path"]) / trial["run"] / "run.json" for trial in done["trials"]]
    assert len({json.loads(run.read_text())["id"] for run in runs}) == 8
    assert len(list((Path(done["path"]) / "trials").iterdir())) == 8
    assert [row["completed"] for row in done["rows"]] == [4, 4]


@pytest.mark.long
def test_a_sweep_on_ray_that_was_killed_or_stopped_goes_on_with_what_is_missing(stepscope, cluster):
    cluster.add()
    sweep = stepscope.start("sweep", *QUICK, *EIGHT, "--on", "ray", "--address", cluster.address)
    folder = wait_for_trials(sweep, stepscope.folder / "runs", completed=2)
    sweep.kill()
    sweep.communicate()
    again = stepscope.start("sweep", "--resume", folder)
    wait_for_trials(again, stepscope.folder / "runs", completed=4)
    again.send_signal(signal.SIGINT)
    _, words = again.communicate(timeout=60)
    assert again.returncode == 130, words
    done_before = [
        each for each in recorded_sweep(folder)["trials"] if each["status"] == "completed"
    ]

    stepscope.succeed("sweep", "--resume", folder, "--on", "here")
    trials = recorded_sweep(folder)["trials"]
    assert [trial["status"] for trial in trials] == ["completed"] * 8
    assert [trial for trial in trials if trial in done_before] == done_before
    # This machine and its node are one kind, by two names: their trials may be compared.
    assert len({trial["node"] for trial in trials}) == 2
    assert len({trial["node_kind"] for trial in trials}) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("__version__ = '0.0.1'", "has stepscope 0.0.1"),
        ("raise ImportError('no')", "has no stepscope"),
    ],
)
def test_a_node_without_stepscope_or_with_another_version_is_named(
    stepscope, cluster, source, complaint
):
    other = stepscope.folder / "other" / "stepscope"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text(source)
    cluster.add()
    cluster.add(PYTHONPATH=str(other.parent))

    answer = stepscope(
        "sweep", *QUICK, "--over", "workers=0,1", "--on", "ray", "--address", cluster.address
    )

    assert answer.is_refused(5, complaint)
    assert not (stepscope.folder / "runs").exists()


@pytest.mark.long
def test_a_node_that_joins_and_cannot_run_the_settings_gets_no_trials(stepscope, cluster):
    clock = clock_source(Path("/")).value
    if clock is None:
        pytest.skip("this machine does not tell its clock source, and could require nothing")
    (stepscope.folder / "no-machine").mkdir()
    cluster.add()
    sweep = stepscope.start(
        *("sweep", *QUICK, *EIGHT, "--require", f"clock_source={clock}", "--json"),
        *("--on", "ray", "--address", cluster.address),
    )
    wait_for_trials(sweep, stepscope.folder / "runs", completed=1)
    cluster.add(STEPSCOPE_SYSTEM_ROOT=str(stepscope.folder / "no-machine"))
    out, err = sweep.communicate(timeout=300)

    assert sweep.returncode == 0, err
    trials = json.loads(out)["trials"]
    assert [trial["status"] for trial in trials] == ["completed"] * 8
    assert len({trial["node"] for trial in trials}) == 1
    assert "It gets no trials." in err


BUDGET = ("--budget", "energy_mj=0.2,cycles=1e5")
SHORT = shlex.split("--trials 4 --epochs 2 --samples 128 --threads 1 --model lenet --batch-size 32")


@pytest.mark.long
def test_a_search_trains_on_both_nodes_and_tests_the_best_once(stepscope, cluster):
    cluster.add()
    cluster.add()
    found = stepscope.succeed(
        "accel", "search", *BUDGET, *SHORT, "--on", "ray", "--address", cluster.address, "--json"
    ).json
    assert found["at_once"] == 2
    assert found["on"] == {"runner": "ray", "address": cluster.address, "mix_nodes": True}
    trials = found["trials"]
    assert [trial["status"] for trial in trials] == ["completed"] * 7
    assert [trial["repeat"] for trial in trials] == [1] * 4 + [2] * 2 + [3]
    assert len({trial["node"] for trial in trials}) == 2
    [tested] = [design for design in found["designs"] if design["test_accuracy"] is not None]
    assert tested["validation_accuracy"] is not None
