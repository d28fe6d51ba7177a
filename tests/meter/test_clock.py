"""What reading a clock, or anything else, costs."""

from __future__ import annotations

from stepscope.meter.clock import cost_amid_work_ns, cost_ns


def test_nothing_costs_nothing_among_other_work() -> None:
    def something() -> None:
        sum(range(2000))

    for cost in (cost_amid_work_ns, cost_ns):
        assert cost(lambda: None) < cost(something) / 2
