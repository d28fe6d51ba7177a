"""The bill of a run that has ended: each pool beside what was forecast of it."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.analyze.memory_use import compare_with_forecast


def forecast(**pools: str) -> dict[str, Any]:
    sizes = {"runtime": 300, "device_context": 200, "activations": 500}
    items = {
        name: {"bytes": size, "how": "counted", "note": "", "pool": pools.get(name, "host")}
        for name, size in sizes.items()
    }
    return {"items": items, "total_bytes": sum(sizes.values())}


def test_each_pool_has_its_error_and_what_stays_unexplained() -> None:
    expected = forecast(device_context="device", activations="device")
    bill, _ = compare_with_forecast(expected, {"device_context": 250}, 400, 800)
    assert bill["pools"]["host"] == {
        "total_bytes": 300,
        "peak_bytes": 400,
        "error_share": pytest.approx(-0.25),
        "unexplained_bytes": 100,
        "unexplained_share": 0.25,
    }
    device = bill["pools"]["device"]
    assert device["error_share"] == pytest.approx(700 / 800 - 1)
    assert device["unexplained_bytes"] == 800 - 250 - 500
    assert bill["peak_memory_bytes"] == 1200
    assert bill["unexplained_bytes"] == 150


def test_memory_that_is_shared_has_one_pool_with_both_peaks() -> None:
    names = dict.fromkeys(("runtime", "device_context", "activations"), "unified")
    bill, _ = compare_with_forecast(forecast(**names), {}, 400, 800)
    assert list(bill["pools"]) == ["unified"]
    assert bill["pools"]["unified"]["peak_bytes"] == bill["peak_memory_bytes"] == 1200


def test_the_peak_of_a_run_that_took_no_step_is_not_held_against_its_forecast() -> None:
    bill, _ = compare_with_forecast(forecast(), {}, 400, took_a_step=False)
    assert bill["peak_memory_bytes"] == 400
    assert "error_share" not in bill
    assert "error_share" not in bill["pools"]["host"]


def test_a_peak_that_is_unknown_stays_unknown() -> None:
    expected = forecast(device_context="device", activations="device")
    bill, _ = compare_with_forecast(expected, {}, 400, None)
    assert bill["pools"]["device"] == {"total_bytes": 700, "peak_bytes": None}
    assert bill["peak_memory_bytes"] is None
    assert "error_share" not in bill
    assert bill["pools"]["host"]["unexplained_bytes"] == 100


def test_without_a_forecast_there_is_a_reason() -> None:
    reason = "the run ended before its memory was forecast"
    assert compare_with_forecast(None, {}, 10) == (None, reason)
