"""How a forecast looks: pools are shown where there is more than one, and the verdict is of one."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console

from stepscope.report.terminal.run_tables import print_forecast

MIB = 2**20
SPEC = {"model": "lenet", "data": "shapes", "device": "cuda", "optimizer": "sgd"}
REMEDY = {"settings": {"batch_size": 8}, "total_bytes": MIB, "pool_bytes": 50 * MIB, "fits": True}


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
        "spec": {**SPEC, "batch_size": 64, "workers": 0},
        "items": items,
        "total_bytes": 600 * MIB,
        "limits": limits,
        "limit_pool": tensors_in,
        "limit_bytes": room_mib * MIB,
        "limit_of": f"memory of {tensors_in}",
        "fits": needed[tensors_in] <= room_mib * MIB,
        "phases": {"forward": {"peak_bytes": MIB, "end_bytes": MIB}},
        "peak_phase": "forward",
        "remedies": [REMEDY],
    }


def shown(bill: dict[str, Any]) -> str:
    console = Console(width=120)
    with console.capture() as printed:
        print_forecast(console, bill)
    return printed.get()


def test_pools_have_a_total_each_where_there_are_two():
    text = shown(bill_of("device", 400))
    assert re.findall("total(, [a-z]+)?", text) == [", host", ", device"]
    assert "Fits: the run needs 300.0 MiB, 75.0 % of 400.0 MiB (memory of device)." in text
    assert re.findall("total(, [a-z]+)?", shown(bill_of("host", 1200))) == [""]


def test_a_run_that_does_not_fit_ends_with_what_helps():
    text = shown(bill_of("device", 200))
    assert "--batch-size 8: 50.0 MiB, fits" in text
    *_, verdict, advice = text.splitlines()
    assert verdict.startswith("Does not fit: the run needs 300.0 MiB, the limit is 200.0 MiB")
    assert advice == "Use --batch-size 8."
