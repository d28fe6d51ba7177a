"""What measuring cost, from blocks of steps without detail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyze.run_summary import LEAST_BLOCKS, cost_by_off_blocks
from stepscope.records.table import Table


def a_run(blocks: int, full_s: float, off_s: float, drift: float = 0.0) -> Table:
    step_s, detail = [], []
    for _ in range(blocks):
        for kind, took_s, steps in (("full", full_s, 40), ("off", off_s, 20), ("full", full_s, 40)):
            for _ in range(steps):
                step_s.append(took_s + drift * len(step_s))
                detail.append(kind)
    return Table({"step_s": step_s, "detail": detail})


def test_the_cost_is_the_difference_to_the_steps_beside_a_block() -> None:
    cost = cost_by_off_blocks(a_run(6, full_s=0.0103, off_s=0.01))
    assert cost is not None
    assert cost["blocks"] == 6
    assert cost["overhead_per_step_s"] == pytest.approx(0.0003)
    assert cost["overhead_share"] == pytest.approx(0.03)


def test_a_machine_that_slows_down_all_the_time_is_no_cost() -> None:
    cost = cost_by_off_blocks(a_run(6, full_s=0.01, off_s=0.01, drift=1e-5))
    assert cost is not None
    assert abs(cost["overhead_per_step_s"]) < 2e-5


def test_a_few_blocks_say_nothing() -> None:
    assert cost_by_off_blocks(a_run(LEAST_BLOCKS - 1, 0.01, 0.01)) is None
    assert cost_by_off_blocks(Table({"step_s": [], "detail": []})) is None


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 10), st.sampled_from(["full", "off", "layers"])), max_size=300
    )
)
def test_any_mixture_of_details_can_be_weighed(steps: list[tuple[float, str]]) -> None:
    table = Table({"step_s": [s for s, _ in steps], "detail": [d for _, d in steps]})
    cost = cost_by_off_blocks(table)
    assert cost is None or cost["low_s"] <= cost["overhead_per_step_s"] <= cost["high_s"]
