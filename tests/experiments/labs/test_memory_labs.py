"""The labs without a sheet: their calculations, and small real ones."""

import json
import subprocess
import sys
from pkgutil import iter_modules

import pytest
from quiet_lab import QuietListener

from stepscope.errors import RequestError
from stepscope.experiments.labs import lab_runner, procedures
from stepscope.experiments.labs.procedures import memory_lab, second_epoch_lab
from stepscope.experiments.labs.procedures.memory_lab import (
    Remedy,
    by_phase,
    peak_phase,
    remedies_for,
    try_steps,
    weigh_remedies,
    what_frees,
)
from stepscope.experiments.labs.procedures.second_epoch_lab import choose_limit, nothing_lost
from stepscope.memory_forecast.fit_check import WORKERS_STAY_BELOW
from stepscope.settings.load_settings import validate
from stepscope.supervisor.memory_guard import NEAR_SHARE

MIB = 2**20
TINY = {"samples": 320, "batch_size": 64, "threads": 1, "device": "cpu"}


def test_an_unknown_lab_is_answered_with_the_nearest():
    with pytest.raises(RequestError, match="Did you mean 'memory'"):
        lab_runner.find_sheet("memry")


def test_no_lab_loads_torch_or_numpy_when_it_is_imported():
    modules = [
        f"{procedures.__name__}.{module.name}" for module in iter_modules(procedures.__path__)
    ]
    assert len(modules) == 5
    code = (
        f"import sys, {', '.join(modules)}; print(sorted({{'torch', 'numpy'}} & {{*sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def memory_trials(*peaks, step_s=0.01):
    return [{"peak_bytes": peak, "step_s": [step_s] * 4, "losses": [1.0]} for peak in peaks]


def test_remedies_are_told_apart_from_noise_together():
    remedies = [Remedy("half", ""), Remedy("a little", ""), Remedy("equal", "")]
    trials = {
        "unchanged": memory_trials(200 * MIB, 201 * MIB, 199 * MIB),
        "half": memory_trials(100 * MIB, 100 * MIB, 101 * MIB, step_s=0.02),
        # Its rounds all lie below those of the unchanged training, as they do once in twenty times.
        "a little": memory_trials(196 * MIB, 197 * MIB, 190 * MIB),
        "equal": memory_trials(201 * MIB, 199 * MIB, 200 * MIB),
    }
    half, little, equal = weigh_remedies(remedies, trials).values()
    assert (half["differs"], little["differs"], equal["differs"]) == (True, False, False)
    assert half["saved_bytes"] == pytest.approx(100 * MIB, rel=0.02)
    low, high = half["saved_interval_bytes"]
    assert low < half["saved_bytes"] < high
    assert (half["step_time_ratio"], half["step_time_differs"]) == (pytest.approx(2), True)
    assert not equal["step_time_differs"]


def reading(step, phase, end, peak, in_use):
    sizes = {"end_bytes": end, "peak_bytes": peak, "in_use_bytes": in_use, "kept_bytes": 0}
    return {"epoch": 1, "step": step, "phase": phase, **sizes}


READINGS = [
    reading(0, "network", 100 * MIB, 100 * MIB, 10 * MIB),
    reading(1, "forward", 150 * MIB, 150 * MIB, 40 * MIB),
    reading(1, "backward", 140 * MIB, 190 * MIB, 20 * MIB),
    reading(2, "forward", 160 * MIB, 170 * MIB, 50 * MIB),
    reading(2, "backward", 145 * MIB, 200 * MIB, 20 * MIB),
    reading(3, "forward", 160 * MIB, 200 * MIB, 50 * MIB),
    reading(3, "backward", 147 * MIB, 200 * MIB + 4096, 20 * MIB),
]


def test_the_first_step_stands_apart_and_later_ones_give_medians():
    phases = {phase["phase"]: phase for phase in by_phase(READINGS)}
    assert list(phases) == ["network", "forward", "backward"]
    backward = phases["backward"]
    assert backward["first_step_peak_bytes"] == 190 * MIB
    assert backward["peak_bytes"] == 200 * MIB + 4096
    assert backward["end_bytes"] == 146 * MIB
    assert (phases["forward"]["change_bytes"], backward["change_bytes"]) == (30 * MIB, -30 * MIB)
    assert phases["network"]["change_bytes"] is None, "nothing was read before it"
    assert phases["network"]["first_step_peak_bytes"] is None


def test_the_peak_falls_into_the_phase_that_first_came_near_it():
    assert peak_phase(READINGS) == "backward"
    assert peak_phase([{**each, "peak_bytes": None} for each in READINGS]) is None


@pytest.mark.parametrize(
    ("settings", "tried", "not_tried"),
    [
        ({}, {"recompute activations", "accumulate gradients"}, {"no workers"}),
        ({"workers": 4}, {"keep workers", "fewer workers", "no workers"}, set()),
        (
            {"workers": 1, "persistent_workers": True},
            {"end workers per epoch", "no workers"},
            {"keep workers", "fewer workers"},
        ),
        ({"checkpoint_activations": True}, set(), {"recompute activations"}),
        ({"batch_size": 6}, set(), {"accumulate gradients"}),
    ],
)
def test_only_remedies_that_change_something_are_tried(settings, tried, not_tried):
    names = {remedy.name for remedy in remedies_for(validate(settings))}
    assert tried <= names
    assert not not_tried & names


def test_what_frees_a_kind_of_memory_names_the_call():
    alive = dict.fromkeys(("parameters", "batch", "activations", "gradients", "temporaries"), 7)
    items = {name: {"bytes": 5} for name in ("optimizer_state", "dataset", "workers", "prefetch")}
    bill = {"at_peak": alive, "items": {**items, "slack": {"bytes": 0}, "runtime": {"bytes": 9}}}
    by = {kind["kind"]: kind["by"] for kind in what_frees(bill, validate({"workers": 1}))}
    assert "loss.backward()" in by["activations"]
    assert "zero_grad()" in by["gradients"]
    assert "iterator" in by["workers"]
    assert "allocator cache" not in by, "there is none"
    kept = validate({"workers": 1, "persistent_workers": True})
    freed = {each["kind"]: each["when"] for each in what_frees(bill, kept)}
    assert freed["workers"] == "after the training"


# --- the second epoch -----------------------------------------------------------------------------


def test_the_limit_lies_where_the_guard_acts_and_does_not_kill():
    near = NEAR_SHARE
    assert near == WORKERS_STAY_BELOW, "forecast and guard agree"
    assert choose_limit(5, 1000, 1000) == (5, "from --memory-limit")
    for forecast in (None, 800, 990, 1000, 1500):
        limit, _ = choose_limit(None, 1000, forecast)
        assert limit * near < 1000 < limit
    limit, chosen = choose_limit(None, 1000, 990)
    assert limit * near < 990, "the forecast warns of it"
    assert "forecast" in chosen


def test_a_run_that_ended_or_lacks_a_sample_has_lost_something():
    whole = {"status": "completed", "samples_by_epoch": {1: 10, 2: 10}}
    assert nothing_lost(whole, 10, same_steps=True)
    assert not nothing_lost(whole, 10, same_steps=False)
    assert not nothing_lost(whole, 11, same_steps=True)
    assert not nothing_lost({**whole, "status": "out_of_memory"}, 10, same_steps=True)


@pytest.mark.parametrize("without", [{"test_at": "end"}, {"evaluate": False}])
def test_a_run_without_an_evaluation_between_its_epochs_is_refused(without):
    with pytest.raises(RequestError, match="evaluation after the first epoch"):
        second_epoch_lab.run_lab(validate({**TINY, "workers": 1, **without}), QuietListener())


# --- real ones ------------------------------------------------------------------------------------


def test_steps_read_phase_by_phase_show_who_frees_what():
    seen = try_steps(validate(TINY), {"phases": True, "steps": 4})
    phases = {phase["phase"]: phase for phase in by_phase(seen["phases"])}
    a_step = ["data", "transfer", "forward", "backward", "optimizer step", "zero_grad"]
    assert [phase for phase in phases if phase in a_step] == a_step
    room = 2 * MIB  # the kernel's counters lag a little
    assert phases["zero_grad"]["end_bytes"] <= phases["backward"]["end_bytes"] + room
    assert all(each["peak_bytes"] + room >= each["end_bytes"] for each in phases.values())
    if phases["forward"]["in_use_bytes"] is None:
        pytest.skip("the allocator of this system does not tell")
    changes = {name: phase["change_bytes"] for name, phase in phases.items()}
    assert changes["forward"] > MIB > -MIB > changes["backward"], "activations come and go"
    assert changes["zero_grad"] == pytest.approx(-4 * 62_006, rel=0.1), "the gradients of LeNet"
    assert changes["drop of outputs, loss and batch"] < -64 * 3072 * 4 // 2


def test_gradients_stepped_inside_backward_train_the_same():
    alike = validate({**TINY, "optimizer": "adam"})
    asked = {"steps": 4}
    losses = try_steps(alike, asked)["losses"]
    assert try_steps(alike, {**asked, "step_in_backward": True})["losses"] == losses
    several = validate({**TINY, "batch_size": 16, "accumulate": 4})
    with pytest.raises(RequestError, match="needs accumulate 1"):
        try_steps(several, {**asked, "step_in_backward": True})


def test_lab_memory_has_a_bill_phases_and_what_was_tried(monkeypatch):
    remedies = [
        Remedy("accumulate gradients", "", settings={"batch_size": 16, "accumulate": 4}),
        Remedy("recompute activations", "", settings={"checkpoint_activations": True}),
    ]
    monkeypatch.setattr(memory_lab, "ROUNDS", 1)
    monkeypatch.setattr(memory_lab, "remedies_for", lambda spec: remedies)
    finding = memory_lab.run_lab(validate(TINY), QuietListener())
    found = json.loads(json.dumps(finding))
    bill = found["bill"]
    assert bill["total_bytes"] == sum(item["bytes"] for item in bill["items"].values())
    assert bill["peak_memory_bytes"] > 0
    assert bill["unexplained_bytes"] is not None
    assert found["peak_phase"] in {phase["phase"] for phase in found["phases"]}
    smaller, recomputed = found["remedies"]
    assert smaller["applies"]
    assert smaller["saved_bytes"] == smaller["without_bytes"][0] - smaller["with_bytes"][0]
    assert (recomputed["applies"], recomputed["saved_bytes"]) == (False, None)
    assert "no sequence of blocks" in recomputed["reason"]
    assert "at its peak" in finding["answer"]
