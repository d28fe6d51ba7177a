"""What reading a clock, or anything else, costs."""

from __future__ import annotations

from statistics import median

from stepscope.meter.clock import cost_amid_work_ns, cost_ns, now_ns


def test_a_call_among_other_work_costs_more_than_one_after_the_other() -> None:
    seen: list[int] = []

    def note() -> None:
        seen.append(now_ns())

    # What else a busy machine does may take the caches from either: mostly it does not.
    assert median(cost_amid_work_ns(note) / cost_ns(note) for _ in range(15)) > 1
    assert len(seen) == 15 * (100 + 2000)


def test_nothing_costs_nothing_among_other_work() -> None:
    def something() -> None:
        sum(range(2000))

    assert cost_amid_work_ns(lambda: None) < cost_amid_work_ns(something) / 2
