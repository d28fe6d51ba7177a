"""What a call costs."""

from stepscope.meter.clock import cost_amid_work_ns


def test_nothing_costs_nothing_among_other_work():
    assert cost_amid_work_ns(lambda: None) < cost_amid_work_ns(lambda: sum(range(2000))) / 2
