"""Who waited for whom: the device's time beside the host's."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.analyze.phase_shares import device_time
from stepscope.records.schema import STEP_COLUMNS
from stepscope.records.table import Table


def steps(host_s: float, device_s: float | None, idle_s: float = 0.0, count: int = 3) -> Table:
    row: dict[str, Any] = dict.fromkeys(STEP_COLUMNS)
    row |= {"detail": "full", "idle_device_s": idle_s}
    for phase in ("transfer", "forward", "backward", "optimizer"):
        row[f"{phase}_s"], row[f"{phase}_device_s"] = host_s, device_s
    rows = [{**row, "epoch": 1 + number // 2, "step": number} for number in range(count)]
    return Table({column: [each[column] for each in rows] for column in STEP_COLUMNS})


def test_on_a_cpu_there_is_no_second_timeline() -> None:
    assert device_time(steps(0.01, None), []) is None


@pytest.mark.parametrize(
    ("host_s", "device_s", "idle_s", "bound_by"),
    [
        (0.001, 0.010, 0.0, "device"),
        (0.010, 0.010, 0.0, "host"),
        (0.001, 0.010, 0.020, "data"),
    ],
)
def test_a_loop_is_called_by_what_it_waits_for(
    host_s: float, device_s: float, idle_s: float, bound_by: str
) -> None:
    found = device_time(steps(host_s, device_s, idle_s), [])
    assert found["bound_by"] == bound_by


def test_shares_of_the_devices_time_add_up_and_dropped_epochs_are_left_out() -> None:
    found = device_time(steps(0.001, 0.010, 0.010), [1])
    assert sum(phase["share"] for phase in found["phases"].values()) == pytest.approx(1)
    assert found["phases"]["forward"]["total_s"] == pytest.approx(0.010), (
        "one step of three is left"
    )
