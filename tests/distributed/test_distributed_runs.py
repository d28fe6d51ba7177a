"""One training over two processes: the same losses, every sample once, and a folder a rank."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from polling import free_port
from stepscope_command import Stepscope, closes
from torchrun_command import ranks_of, start_torchrun, the_run, training_of_rank, wait_until

from stepscope.records.run_reader import Run, load_run

# The last batch has one sample, so that one of the two processes has no part of it.
SAMPLES = 321
SETTINGS = ("--samples", SAMPLES, "--batch-size", 32, "--accumulate", 2, "--lr", 0.1)
TWO_EPOCHS = (*SETTINGS, "--epochs", 2)
MANY_EPOCHS = (*SETTINGS, "--epochs", 400, "--no-evaluate")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("two")
    answer = Stepscope(folder)("run", "--processes", 2, *TWO_EPOCHS, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["summary"]["ranks"][1]["rank"] == 1
    assert answer.err.count("\nepoch 2:") == 1, "one of them shows how it goes"
    return the_run(folder)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("one")
    answer = Stepscope(folder)("run", *TWO_EPOCHS)
    assert answer.code == 0, answer.err
    return the_run(folder)


def test_two_processes_have_the_losses_and_the_accuracy_of_one(one: Run, two: Run) -> None:
    assert two.steps["loss"] == pytest.approx(one.steps["loss"], rel=1e-4)
    assert two.steps["samples"] == one.steps["samples"]
    for column in ("epoch", "split", "samples"):
        assert two.epochs[column] == one.epochs[column]
    for column in ("loss", "accuracy", "top5"):
        assert two.epochs[column] == pytest.approx(one.epochs[column], rel=1e-4)


def test_each_rank_has_a_whole_folder_and_closes_its_account(two: Run) -> None:
    for rank, run in enumerate(ranks_of(two)):
        assert run.status == "completed"
        assert closes(run)
        assert len(run.telemetry) > 0
        seen = [row["samples"] for row in run.steps.rows() if row["epoch"] == 1]
        assert sum(seen) == 161 - rank, "every sample once, by either"
        told = run.info["environment"]["distributed"]
        assert (told["rank"], told["processes"], told["share"]) == (rank, 2, 16)
        exposed, backward = run.steps["communication_s"], run.steps["backward_s"]
        assert all(0 < part <= whole for part, whole in zip(exposed, backward, strict=True))
    assert two.steps["step_s"] == ranks_of(two)[0].steps["step_s"], "the times are rank 0's"
    assert set(two.summary["slowest_rank"]) == set(two.summary["phases"])
    assert two.summary["communication"]["share"] > 0


def test_a_run_of_one_process_communicates_nothing(one: Run) -> None:
    assert set(one.steps["communication_s"]) == {None}
    assert one.summary["communication"] is None
    assert "one process" in one.summary["absent"]["communication"]


@pytest.mark.long
def test_a_stopped_run_goes_on_to_the_bit(stepscope: Stepscope, two: Run) -> None:
    started = stepscope.start(
        "run", "--processes", 2, *TWO_EPOCHS, "--source", "memory", "--pipeline-delay-ms", 3
    )
    training_of_rank(stepscope.folder, 0)
    started.send_signal(signal.SIGTERM)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130, said
    stopped = the_run(stepscope.folder)
    assert stopped.status == "interrupted"
    assert [run.status for run in ranks_of(stopped)] == ["interrupted"] * 2
    done = [len(run.steps) for run in (stopped, *ranks_of(stopped))]
    assert done == [done[0]] * 3, "both stopped after the same step"
    assert 0 < done[0] < len(two.steps)

    answer = stepscope("resume", stopped.path)
    assert answer.code == 0, answer.err
    resumed = load_run(stopped.path)
    assert resumed.steps["loss"] == two.steps["loss"]
    assert resumed.epochs["accuracy"] == two.epochs["accuracy"]
    assert resumed.epochs["samples"] == two.epochs["samples"]


@pytest.mark.long
def test_it_may_go_on_in_another_number_of_processes(stepscope: Stepscope, two: Run) -> None:
    started = stepscope.start("run", *TWO_EPOCHS, "--pipeline-delay-ms", 3)
    wait_until(lambda: len(the_run(stepscope.folder).steps) > 0)
    started.send_signal(signal.SIGTERM)
    started.communicate(timeout=60)
    path = the_run(stepscope.folder).path
    answer = stepscope("resume", path, "--processes", 2)
    assert answer.code == 0, answer.err
    resumed = load_run(path)
    assert resumed.spec["processes"] == 2
    assert resumed.steps["samples"] == two.steps["samples"]
    assert resumed.epochs["samples"] == two.epochs["samples"]
    assert resumed.steps["loss"] == pytest.approx(two.steps["loss"], rel=1e-4)
    assert resumed.epochs["accuracy"] == pytest.approx(two.epochs["accuracy"], abs=0.02)
    [changed] = [e for e in ranks_of(resumed)[0].events if e["event"] == "processes"]
    assert (changed["before"], changed["now"]) == (1, 2)


def test_a_killed_rank_fails_the_run_on_every_rank(stepscope: Stepscope) -> None:
    started = stepscope.start("run", "--processes", 2, *MANY_EPOCHS)
    training = training_of_rank(stepscope.folder, 1, after_steps=5)
    wait_until(lambda: len(the_run(stepscope.folder).steps) >= 5)
    assert the_run(stepscope.folder).status == "running", "its tables grow while ranks train"
    training.kill()
    _, said = started.communicate(timeout=30)
    assert started.returncode == 70, said
    run = the_run(stepscope.folder)
    assert run.status == "failed"
    assert run.info["reason"].startswith("rank 1: ")
    assert "SIGKILL" in run.info["reason"]
    for rank in ranks_of(run):
        assert rank.status == "failed"
        assert len(rank.steps) >= 5


@pytest.mark.long
def test_a_rank_whose_parent_is_killed_too_leaves_nothing_open(stepscope: Stepscope) -> None:
    started = stepscope.start("run", "--processes", 2, *MANY_EPOCHS)
    parent = training_of_rank(stepscope.folder, 1).parent()
    assert parent is not None
    parent.kill()
    _, said = started.communicate(timeout=30)
    assert started.returncode != 0, said
    run = the_run(stepscope.folder)
    assert [each.status for each in (run, *ranks_of(run))] == ["failed"] * 3


@pytest.mark.long
def test_torchrun_starts_a_killed_rank_again_from_the_checkpoint(tmp_path: Path, two: Run) -> None:
    options = ("--standalone", "--max-restarts", 1)
    started = start_torchrun(
        tmp_path, "run", *TWO_EPOCHS, "--pipeline-delay-ms", 3, "--json", options=options
    )
    training_of_rank(tmp_path, 1).kill()
    _, said = started.communicate(timeout=120)
    assert started.returncode == 0, said
    run = the_run(tmp_path)
    assert run.status == "completed"
    assert run.steps["loss"] == two.steps["loss"]
    assert "resume" in [event["event"] for event in ranks_of(run)[0].events]
    assert not list((tmp_path / "runs").glob(".rendezvous*"))


def test_ranks_that_were_asked_for_different_trainings_are_refused(tmp_path: Path) -> None:
    script = f"exec python -m stepscope run {' '.join(map(str, TWO_EPOCHS))} --momentum 0.$RANK"
    started = start_torchrun(tmp_path, options=("--standalone",), script=script)
    _, said = started.communicate(timeout=120)
    assert started.returncode != 0
    run = the_run(tmp_path)
    assert run.status == "failed"
    assert "momentum is 0.1 for rank 1 and 0.0 for rank 0" in run.info["reason"], said


@pytest.mark.long
def test_two_launchers_meet_as_two_hosts(tmp_path: Path, two: Run) -> None:
    options = ("--nnodes", 2, "--nproc-per-node", 1, "--rdzv-backend", "c10d", "--rdzv-id", "meet")
    options += ("--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    hosts = [start_torchrun(tmp_path, "run", *TWO_EPOCHS, options=options) for _ in range(2)]
    for host in hosts:
        _, said = host.communicate(timeout=200)
        assert host.returncode == 0, said
    run = the_run(tmp_path)
    assert run.steps["loss"] == two.steps["loss"]
    assert [rank["share"] for rank in run.summary["ranks"]] == [16, 16]
