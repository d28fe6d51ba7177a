"""How a forecast looks: pools are shown where there is more than one, and the verdict is of one."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from stepscope.report.terminal.run_tables import print_forecast

MIB = 2**20
SPEC = {
    "model": "lenet",
    "data": "shapes",
    "device": "cuda",
    "optimizer": "sgd",
    "batch_size": 64,
    "workers": 0,
}


def bill_of(tensors_in: str, room_mib: int) -> dict[str, Any]:
    where = {"runtime": "host", "activations": tensors_in}
    items = {
        name: {"bytes": 300 * MIB, "how": "counted", "note": f"note of {name}", "pool": pool}
        for name, pool in where.items()
    }
    needed = {pool: 300 * MIB * list(where.values()).count(pool) for pool in where.values()}
    limits = {
        pool: {"of": f"memory of {pool}", "bytes": room_mib * MIB, "needed_bytes": size}
        for pool, size in needed.items()
    }
    return {
        "spec": SPEC,
        "items": items,
        "total_bytes": 600 * MIB,
        "limits": limits,
        "limit_pool": tensors_in,
        "limit_bytes": room_mib * MIB,
        "limit_of": f"memory of {tensors_in}",
        "fits": needed[tensors_in] <= room_mib * MIB,
        "phases": {"forward": {"peak_bytes": MIB, "end_bytes": MIB}},
        "peak_phase": "forward",
        "remedies": [
            {
                "settings": {"batch_size": 8},
                "total_bytes": MIB,
                "pool_bytes": 50 * MIB,
                "fits": True,
            }
        ],
    }


def shown(bill: dict[str, Any]) -> str:
    console = Console(width=120)
    with console.capture() as printed:
        print_forecast(console, bill)
    return printed.get()


def test_two_pools_have_a_column_and_a_sum_each():
    text = shown(bill_of("device", 400))
    assert "pool" in text
    assert "in all, host" in text
    assert "in all, device" in text
    assert "fits: 75.0 % of 400.0 MiB (memory of device)" in text


def test_one_pool_is_not_spoken_of():
    text = shown(bill_of("host", 1200))
    assert "pool" not in text
    assert "in all " in text
    assert "fits: 50.0 % of 1.2 GiB (memory of host)" in text


def test_a_device_that_is_too_small_is_told_what_it_lacks_and_what_helps():
    text = shown(bill_of("device", 200))
    assert "does not fit: 300.0 MiB of 200.0 MiB (memory of device)" in text
    assert "--batch-size 8: 50.0 MiB, fits" in text
