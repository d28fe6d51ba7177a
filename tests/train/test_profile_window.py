"""A look at layers or counters in the middle of a run changes only the rows that say so."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from software_events import SOFTWARE
from user_networks import BLOCKS, same_weights
from whole_records import whole

from stepscope.analyze.run_summary import Measured, summarize
from stepscope.hardware.perf_events import Counters, open_counters
from stepscope.processes import training_session
from stepscope.records import schema
from stepscope.records.run_folder import RunFolder
from stepscope.records.run_reader import Run, load_run
from stepscope.records.types import LayerTime, TrainingResult
from stepscope.report.terminal.run_tables import print_run
from stepscope.supervisor.child_supervisor import SilentListener
from stepscope.supervisor.start_run import resume
from stepscope.train.epoch_plan import plan_stages
from stepscope.train.profile_window import place_window


def looked_at(run):
    rows = run.steps.rows()
    return [(row["epoch"], row["step"]) for row in rows if row["detail"] == "layers"]


# --- where ----------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 30), st.none() | st.integers(1, 200), st.integers(0, 40))
def test_the_place_is_in_the_middle_of_one_epoch_with_a_step_on_either_side(
    epochs, steps_per_epoch, max_steps, asked
):
    stages = plan_stages(epochs, steps_per_epoch, max_steps)
    place = place_window(stages, asked)
    longest = max(stage.steps for stage in stages)
    assert place.steps == max(0, min(asked, longest - 2))
    if place.steps:
        [stage] = [each for each in stages if each.split == "train" and each.epoch == place.epoch]
        assert 2 <= place.first <= place.last <= stage.steps - 1
        before = sum(each.steps for each in stages if each.epoch < place.epoch)
        middle = sum(each.steps for each in stages) // 2
        assert before <= middle < before + stage.steps


# --- the run --------------------------------------------------------------------------------------


def test_losses_and_weights_are_those_of_a_run_without_a_look(train):
    settings = {"batch_size": 2, "accumulate": 2, "precision": "bf16"}
    settings |= {"model": BLOCKS, "samples": 20, "checkpoint_activations": True}
    without, run = train(**settings), train(**settings, layers=3)
    assert len(looked_at(run)) == 3
    assert looked_at(without) == []
    assert run.steps["loss"] == without.steps["loss"]
    assert run.epochs["accuracy"] == without.epochs["accuracy"]
    assert same_weights(run, without)


def test_the_steps_that_are_looked_at_say_so_and_the_summary_is_of_the_others(train):
    run = train(epochs=1, layers=2)  # 6 steps
    assert looked_at(run) == [(1, 3), (1, 4)]
    for row in run.steps.rows():
        assert (row["forward_s"] is None) == (row["detail"] == "layers")
        assert row["step_s"] > 0
    phases = summarize(run, Measured())["phases"]
    full_s = [row["forward_s"] for row in run.steps.rows() if row["detail"] == "full"]
    assert phases["forward"]["mean_s"] == pytest.approx(sum(full_s) / 4)
    assert sum(phase["share"] for phase in phases.values()) == pytest.approx(1)


@pytest.mark.parametrize("looks", [7, 9, 10])  # before, in and after the steps 3 to 5
def test_a_run_that_is_stopped_around_the_look_goes_on_all_the_same(train, trained, looks):
    settings = {"optimizer": "adam", "lr": 0.001, "epochs": 1, "layers": 3}
    whole = trained(**settings)
    stopped = train(looks_before_stop=looks, **settings)
    assert len(stopped.steps) == looks - 5
    resumed = train(stopped.path)
    assert resumed.steps["loss"] == whole.steps["loss"]
    assert same_weights(resumed, whole)
    assert 1 <= len(looked_at(resumed)) <= 3


def test_a_run_may_go_on_with_a_look_that_was_not_asked_for_before(train):
    stopped = train(looks_before_stop=8, epochs=1)
    info = json.loads((stopped.path / "run.json").read_text())
    info["spec"]["layers"] = 1
    (stopped.path / "run.json").write_text(json.dumps(info))
    assert looked_at(train(stopped.path)) == [(1, 4)]


# --- what comes of it -----------------------------------------------------------------------------


def summed_up(train, **settings):
    """Train without a parent, and write down what a parent would."""
    result = {}
    run = train(**{"samples": 96, "epochs": 1, **settings}, result=result)
    looked_at = {name: result.get(name) for name in ("layers", "counters")}
    summary = summarize(run, Measured(**looked_at, absent=result["absent"]))
    RunFolder(run.path).update_info(summary=summary)
    return load_run(run.path)


def printed(run):
    console = Console(file=io.StringIO(), width=80)
    print_run(console, run)
    return console.file.getvalue()


def test_the_layers_are_in_the_summary_and_on_the_terminal(train):
    run = summed_up(train, samples=192, layers=100)
    assert len(looked_at(run)) == 4
    layers = run.summary["layers"]
    assert "layers" not in run.summary["absent"]
    by_name = {layer["name"]: layer for layer in layers}
    assert by_name["features.3"]["kind"] == "Conv2d"
    assert by_name["features.3"]["multiply_adds"] == 32 * 240_000
    taken = [layer["forward_s"] + layer["backward_s"] for layer in layers]
    assert taken == sorted(taken, reverse=True)
    assert sum(taken) < max(run.steps["step_s"])
    text = printed(run)
    rows = [line.split() for line in text.splitlines() if "Conv2d" in line]
    assert sorted(row[0] for row in rows) == ["features.0", "features.3"]
    assert "7.7 M" in text
    assert "the largest 10 of 15, mean of 4 steps timed with hooks; 100 were requested" in text
    as_asked = summed_up(train, samples=192, layers=3)
    assert "the largest 10 of 15, mean of 3 steps timed with hooks\n" in printed(as_asked)


def test_a_run_without_room_or_without_a_wish_says_why_there_are_no_layers(train):
    short = summed_up(train, layers=5, max_steps=2)
    assert short.summary["layers"] is None
    assert "3 steps or more" in short.summary["absent"]["layers"]
    unasked = summed_up(train, max_steps=2)
    assert unasked.summary["layers"] is None
    assert unasked.summary["absent"]["layers"] == "not requested: --layers N"


SCRIPTED = """
import torch
from torch import nn


def network(num_classes):
    return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes)))
"""


@pytest.mark.filterwarnings("ignore:.*jit.script:DeprecationWarning")
def test_a_network_that_takes_no_hooks_is_said_to_take_none(train, tmp_path, monkeypatch):
    (tmp_path / "hookless.py").write_text(SCRIPTED)
    monkeypatch.chdir(tmp_path)
    run = summed_up(train, model="hookless:network", layers=1)
    assert run.summary["layers"] is None
    assert "takes no hooks" in run.summary["absent"]["layers"]


def test_what_was_seen_before_a_stop_is_kept_when_the_run_goes_on(train):
    stopped = train(looks_before_stop=10, epochs=1, layers=3)
    assert len(looked_at(stopped)) == 3
    seen = [whole(LayerTime, {"name": "features.0"})]
    info = json.loads((stopped.path / "run.json").read_text())
    info |= {"status": "interrupted", "summary": {"layers": seen}}
    (stopped.path / "run.json").write_text(json.dumps(info))
    resume(stopped.path, SilentListener())
    assert load_run(stopped.path).summary["layers"] == seen


# --- counters -------------------------------------------------------------------------------------


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Counters:
    """Open software events, in place of those of a processor."""
    opened = open_counters(SOFTWARE)
    if opened.absent:
        pytest.skip(f"no software events here: {opened.absent}")
    monkeypatch.setattr(training_session, "open_counters", lambda events: opened)
    return opened


def test_the_steps_with_counters_are_marked_and_counted_by_phase(
    train: Callable[..., Run], counters: Counters
) -> None:
    result: TrainingResult = {}
    run = train(epochs=1, counters=3, result=result)
    counted = ["counters"] * 3
    assert run.steps["detail"] == ["full", "full", *counted, "full"]
    assert result["absent"] == {}
    assert result["counters"]["steps"] == 3
    phases = result["counters"]["phases"]
    assert set(phases) == set(schema.PHASES) - {"other"}
    assert all(phase["task_clock_ns"] > 0 for phase in phases.values())
    for descriptor in counters.descriptors.values():
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_run_without_room_for_counters_says_so(
    train: Callable[..., Run], counters: Counters
) -> None:
    result: TrainingResult = {}
    train(epochs=1, max_steps=2, counters=3, result=result)
    assert "counters" not in result
    reason = "profiling the counters needs an epoch of 3 steps or more"
    assert result["absent"] == {"counters": reason}


def test_counters_that_cannot_be_opened_say_why_once(
    train: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {"cycles": "a virtual machine", "instructions": "a virtual machine"}
    monkeypatch.setattr(training_session, "open_counters", lambda events: Counters({}, absent))
    result: TrainingResult = {}
    train(epochs=1, counters=3, result=result)
    assert result["absent"] == {"counters": "a virtual machine"}
