"""A training on a device with memory of its own, which is scripted: what is checked of it."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_device_memory import MIB, ScriptedMemory

from stepscope.data import dataset_registry
from stepscope.errors import OutOfMemoryError
from stepscope.memory_forecast.cuda_allocator import reserved_for
from stepscope.memory_forecast.fit_check import FitCheck, check_fit, require_fit
from stepscope.memory_forecast.forecast import probe_steps
from stepscope.models.step_tensors import NO_OPTIMIZER, OptimizerMemory, at_batch
from stepscope.settings.load_settings import validate
from stepscope.train.device import resolve
from stepscope.train.training_setup import build_model

ON_DEVICE = {
    *("device_context", "parameters", "gradients", "optimizer_state"),
    *("activations", "batch", "workspace", "slack"),
}


def checked_with(memory: ScriptedMemory, **settings: Any) -> FitCheck:
    spec = resolve(validate({"model": "lenet", "device": "cpu", "batch_size": 128, **settings}))
    checked = check_fit(spec, build_model(spec), memory)
    assert checked.reason is None
    return checked


def test_tensors_and_context_lie_on_the_device_and_the_rest_on_the_host():
    memory = ScriptedMemory()
    answer = checked_with(memory).to_json()
    pools = {name: item["pool"] for name, item in answer["items"].items()}
    assert {name for name, pool in pools.items() if pool == "device"} == ON_DEVICE
    assert set(pools.values()) == {"host", "device"}
    context = answer["items"]["device_context"]
    assert (context["bytes"], context["how"]) == (300 * MIB, "measured")
    assert answer["items"]["slack"]["how"] == "calibrated"
    assert set(answer["limits"]) == {"host", "device"}
    assert (
        sum(answer["limits"][pool]["needed_bytes"] for pool in answer["limits"])
        == (answer["total_bytes"])
    )
    assert answer["items"]["prefetch"]["bytes"] == answer["items"]["batch"]["bytes"]
    assert memory.asked[-1] == "begin anew", "the run begins with a peak of its own"


def test_the_device_needs_what_the_rules_reserve_and_what_the_trial_took_beyond():
    memory = ScriptedMemory()
    spec = resolve(validate({"model": "lenet", "device": "cpu", "batch_size": 16}))
    shapes = dataset_registry.find("shapes")
    seen = probe_steps(spec, build_model(spec), shapes, memory)
    counted = reserved_for(at_batch(*seen.logs, 16), NO_OPTIMIZER)
    assert seen.device.excess_bytes == memory.peak_reserved_bytes() - counted
    bill = check_fit(spec, build_model(spec), memory).bill
    reserved = reserved_for(at_batch(*seen.logs, 16), seen.optimizer)
    needed = 300 * MIB + reserved + seen.device.excess_bytes
    assert bill.pool_bytes("device") == needed


def test_a_device_that_is_too_small_binds_and_refuses_with_remedies_that_fit_it():
    memory = ScriptedMemory(room_bytes=480 * MIB)
    checked = checked_with(memory, batch_size=4096)
    answer = checked.to_json()
    assert answer["fits"] is False
    assert (answer["limit_pool"], answer["limit_bytes"]) == ("device", 480 * MIB)
    assert answer["limit_of"] == "memory of cpu"  # a device that is there
    fitting = [remedy for remedy in answer["remedies"] if remedy["fits"]]
    assert fitting
    assert all(remedy["pool"] == "device" for remedy in answer["remedies"])
    assert all(remedy["pool_bytes"] <= 480 * MIB for remedy in fitting)
    assert all("workers" not in remedy["settings"] for remedy in answer["remedies"])
    assert checked.workers_that_fit is None
    with pytest.raises(OutOfMemoryError, match=r"limit 480\.0 MiB"):
        require_fit(checked)


def test_shared_memory_of_host_and_device_is_one_pool_with_the_tighter_limit():
    answer = checked_with(ScriptedMemory(unified=True, room_bytes=700 * MIB)).to_json()
    assert {item["pool"] for item in answer["items"].values()} == {"unified"}
    assert set(answer["limits"]) == {"unified"}
    assert answer["limits"]["unified"]["needed_bytes"] == answer["total_bytes"]
    assert answer["limit_bytes"] == 700 * MIB
    tighter = checked_with(ScriptedMemory(unified=True), memory_limit="600MiB").to_json()
    assert (tighter["limit_of"], tighter["fits"]) == ("--memory-limit", False)


def test_an_optimiser_that_steps_all_parameters_at_once_takes_room_for_them():
    assert OptimizerMemory(2.0, 1.0).temporary_bytes([10, 30]) == 30
    assert OptimizerMemory(2.0, 1.0, all_at_once=True).temporary_bytes([10, 30]) == 40
