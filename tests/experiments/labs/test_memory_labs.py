"""Labs: which there are, what their pure parts make of numbers, and two real ones, small."""

from __future__ import annotations

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
    Way,
    by_phase,
    cost,
    peak_phase,
    saving,
    try_steps,
    ways_for,
    what_frees,
)
from stepscope.experiments.labs.procedures.second_epoch_lab import choose_limit, nothing_lost
from stepscope.memory_forecast.fit_check import WORKERS_STAY_BELOW
from stepscope.settings.load_settings import validate
from stepscope.supervisor.memory_guard import Limits

MIB = 2**20
TINY = {"samples": 320, "batch_size": 64, "threads": 1, "device": "cpu"}


# --- the registry ---------------------------------------------------------------------------------


def test_the_defaults_of_every_lab_without_a_sheet_are_settings():
    for name, lab in (("memory", memory_lab), ("second-epoch", second_epoch_lab)):
        assert lab_runner.find_sheet(name) is None
        validate(lab.DEFAULTS)


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


# --- what numbers are made of ---------------------------------------------------------------------


def test_what_was_saved_is_the_median_of_the_rounds_with_their_spread():
    found = saving([100, 110, 120], [70, 90, 80])
    assert found == (30, 20, True)


@pytest.mark.parametrize("after", [[95, 125, 118], [100, 110, 120]])
def test_a_saving_smaller_than_its_spread_is_no_difference(after):
    assert not saving([100, 110, 120], after).differs


def test_what_takes_more_differs_too():
    found = saving([100, 100, 100], [150, 151, 152])
    assert (found.median, found.differs) == (-51, True)


def test_a_step_s_time_is_compared_round_by_round():
    slower = cost([[1.0, 1.0], [2.0, 2.0], [1.0, 9.0, 1.0]], [[1.5, 1.5], [3.0], [1.6]])
    assert slower.median == pytest.approx(1.5)
    assert slower.spread == pytest.approx(0.1)
    assert slower.differs
    assert not cost([[1.0], [1.0]], [[0.5], [1.5]]).differs


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


def names_of(**settings):
    return [way.name for way in ways_for(validate(settings))]


def test_ways_of_workers_are_tried_only_where_there_are_workers():
    assert not [name for name in names_of() if "workers" in name]
    assert names_of(workers=4)[-3:] == [
        "workers kept between epochs",
        "fewer workers",
        "no workers",
    ]
    kept = names_of(workers=1, persistent_workers=True)
    assert kept[-2:] == ["workers ended between epochs", "no workers"]


def test_what_is_already_so_or_does_not_divide_is_not_tried():
    assert "activations recomputed" not in names_of(checkpoint_activations=True)
    assert "smaller batch, accumulated" not in names_of(batch_size=6)


def test_what_frees_a_kind_of_memory_names_the_call():
    alive = dict.fromkeys(("parameters", "batch", "activations", "gradients", "temporaries"), 7)
    items = {name: {"bytes": 5} for name in ("optimizer_state", "dataset", "workers", "prefetch")}
    bill = {"at_peak": alive, "items": {**items, "slack": {"bytes": 0}, "runtime": {"bytes": 9}}}
    by = {kind["kind"]: kind["by"] for kind in what_frees(bill, validate({"workers": 1}))}
    assert "loss.backward()" in by["activations"]
    assert "zero_grad()" in by["gradients"]
    assert "iterator" in by["workers"]
    assert "kept by the allocator" not in by, "there is none"
    kept = validate({"workers": 1, "persistent_workers": True})
    assert "persistent" in {each["kind"]: each["by"] for each in what_frees(bill, kept)}["workers"]


# --- the second epoch -----------------------------------------------------------------------------


def test_the_limit_lies_where_the_guard_acts_and_does_not_kill():
    near = Limits().near_share
    assert choose_limit(5, 1000, 1000) == (5, "asked for")
    for foretold in (None, 800, 990, 1000, 1500):
        limit, _ = choose_limit(None, 1000, foretold)
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


def test_the_forecast_and_the_guard_draw_their_line_for_workers_at_the_same_place():
    assert Limits().near_share == WORKERS_STAY_BELOW


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
    with pytest.raises(RequestError, match="must add up"):
        try_steps(several, {**asked, "step_in_backward": True})


def test_lab_memory_has_a_bill_phases_and_what_was_tried():
    ways = [
        Way("smaller batch, accumulated", "", settings={"batch_size": 16, "accumulate": 4}),
        Way("activations recomputed", "", settings={"checkpoint_activations": True}),
    ]
    finding = memory_lab.run_lab(validate(TINY), QuietListener(), rounds=1, ways=ways)
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
    assert "no row of blocks" in recomputed["reason"]
    assert "at its peak" in finding["answer"]
