"""What holds for every loop whatever, also for those that nobody would write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_clock import MS
from simulated_loop import (
    ADAM,
    CRITIC,
    MODEL,
    OTHER_LOADER,
    SGD,
    TEACHER,
    TEST,
    TRAIN,
    EventByEvent,
    Loop,
    repeats_taken,
)

from stepscope.meter.step_rows import LoadTiming
from stepscope.trace import event_buffer as e
from stepscope.trace.detect.fast_path import _count_repeats

KINDS = range(e.CLOCKS)
SUBJECTS = {
    **dict.fromkeys((e.CALL,), st.sampled_from([MODEL, TEACHER])),
    **dict.fromkeys((e.STEP, e.STEPPED, e.MADE), st.sampled_from([ADAM, SGD])),
    e.CALLED: st.booleans(),
    e.DETAIL: st.sampled_from(["full", "off", "layers"]),
}
LOADERS = st.sampled_from([TRAIN, TEST, OTHER_LOADER])
SAMPLES = st.sampled_from([None, 4, 8])
LOADS = st.sampled_from([None, LoadTiming(0, 0, MS, MS)])


@st.composite
def any_events(draw: st.DrawFn) -> Loop:
    """Events in any order whatever."""
    loop = Loop(on_device=draw(st.booleans()))
    for _ in range(draw(st.integers(1, 60))):
        kind = draw(st.sampled_from(KINDS))
        loop.wait(draw(st.sampled_from([0, 1, 2, 5])))
        subject = draw(SUBJECTS.get(kind, LOADERS))
        details: dict[int, Callable[[], Any]] = {
            e.ITERATE: lambda: (loop.other_clock, draw(st.sampled_from([None, 1, 2]))),
            e.FETCHED: lambda: (draw(SAMPLES), draw(LOADS)),
            e.ITERATED: lambda: e.Iteration(
                draw(st.sampled_from([None, 0, 1, 3])), draw(st.sampled_from([None, 1, 2]))
            ),
            e.BACKWARD_DONE: lambda: draw(st.sampled_from([None, lambda: 1.0])),
            e.CALL: lambda: e.Call(draw(st.booleans()), draw(st.booleans()), draw(SAMPLES)),
        }
        loop.record(kind, subject, details.get(kind, lambda: loop.other_clock)())
    return loop


def wait(draw: st.DrawFn, loop: Loop) -> None:
    loop.wait(draw(st.sampled_from([0, 1, 2, 5])))


def work(draw: st.DrawFn, loop: Loop, depth: int = 0) -> None:
    """Something that a loop may do at any time."""
    wait(draw, loop)
    doing = draw(
        st.sampled_from(["learn", "backward", "call", "predict", "zero", "move", "own", "make"])
    )
    if doing == "learn":
        loop.learn()
    elif doing == "backward":
        loop.call(1)
        loop.backward(1, loss=draw(st.sampled_from([None, 2.0])))
    elif doing == "call":
        module, grad = draw(st.sampled_from([MODEL, TEACHER])), draw(st.booleans())
        loop.call(2, module, grad=grad, training=draw(st.booleans()))
    elif doing == "predict":
        loop.predict(2)
    elif doing == "own":
        loop.own(1)
    elif doing == "make":
        loop.make(draw(st.sampled_from([ADAM, SGD])))
    else:
        getattr(loop, doing)(1)
    wait(draw, loop)


@st.composite
def whole_loops(draw: st.DrawFn) -> Loop:
    """Loaders inside loaders, read to their end or not, and anything at all done between."""
    loop = Loop(on_device=draw(st.booleans()))
    keys = iter(range(100, 200))

    def iteration(depth: int) -> None:
        key = next(keys)
        batches = draw(st.integers(0, 4))
        known = draw(st.booleans())
        of = draw(st.sampled_from([None, 1, 2]))
        loop.iterate(key, ms=2, length=batches if known else None, of=of)
        for _ in range(batches):
            loop.fetch(1, key, samples=draw(SAMPLES), load=draw(LOADS))
            for _ in range(draw(st.integers(0, 2))):
                work(draw, loop)
            if depth < 2 and draw(st.integers(0, 3)) == 0:
                iteration(depth + 1)
        ending = draw(st.sampled_from(["exhaust", "drop", "nothing"]))
        if ending == "exhaust":
            loop.exhaust(1, key)
        elif ending == "drop":
            loop.drop(key)

    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            iteration(0)
        else:
            work(draw, loop)
    return loop


def learn_from(draw: st.DrawFn, loop: Loop, modules: Sequence[int]) -> None:
    """Call modules, and learn from what came out."""
    for module in modules:
        loop.call(2, module, samples=draw(SAMPLES), training=draw(st.booleans()))
        wait(draw, loop)
    loop.backward(4, loss=draw(st.sampled_from([1.0, 2.5, None])))
    wait(draw, loop)


@st.composite
def nearly_plain_loops(draw: st.DrawFn) -> Loop:
    """One step after the other, nearly all alike, and now and then something else."""
    loop, detail = Loop(), "full"
    modules = draw(st.sampled_from([[MODEL], [MODEL, CRITIC], [CRITIC, MODEL], [MODEL, MODEL]]))
    has_metric, is_closure = draw(st.booleans()), draw(st.booleans())
    zeroes = draw(st.sampled_from(["before", "after", "both"]))
    batches, passes = draw(st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1), (3, 1)]))
    optimizers = draw(st.sampled_from([[ADAM], [ADAM], [ADAM, SGD]]))
    for epoch in range(draw(st.integers(1, 2))):
        loop.iterate(epoch, ms=2, length=draw(st.sampled_from([None, 12])), of=1)
        for _ in range(draw(st.integers(3, 12))):
            if draw(st.integers(0, 5)) == 0:
                detail = "off" if detail == "full" else "full"
                loop.record(e.DETAIL, detail)
            if detail == "off":
                loop.fetch(1, epoch, samples=draw(SAMPLES), load=draw(LOADS))
                loop.update(3)
            for batch in range(batches if detail != "off" else 0):
                loop.fetch(1, epoch, samples=draw(SAMPLES), load=draw(LOADS))
                if draw(st.integers(0, 15)) == 0:
                    work(draw, loop)
                wait(draw, loop)
                if zeroes != "after":
                    loop.zero(1)
                is_last = batch == batches - 1
                for optimizer in optimizers:
                    with loop.stepping() if is_last and is_closure else nullcontext():
                        for _ in range(passes):
                            learn_from(draw, loop, modules)
                    if is_last and not is_closure:
                        loop.update(3, optimizer)
                if zeroes != "before":
                    wait(draw, loop)
                    loop.zero(1)
            if has_metric:
                loop.call(1, TEACHER)
            wait(draw, loop)
            if draw(st.integers(0, 7)) == 0:
                work(draw, loop)
        if draw(st.booleans()):
            loop.exhaust(1, epoch)
    return loop


def hold_what_always_holds(loop: Loop) -> None:
    sheet = loop.detected()
    end_ns = 0
    numbers: dict[int, int] = {}
    for row in sheet.rows:
        assert min(row.spent) >= 0
        assert row.start_ns >= end_ns, "steps do not overlap"
        end_ns = row.start_ns + row.step_ns
        numbers[row.epoch] = numbers.get(row.epoch, 0) + 1
        assert row.step == numbers[row.epoch], "steps count from 1 in their epoch"
        if row.device is not None:
            assert min(row.device) >= 0
            assert sum(row.device) == pytest.approx(row.step_ns / 1e9, abs=1e-9)
        str(row)
    trained = sheet.of("train")
    assert [timing.epoch for timing in trained] == list(range(1, len(trained) + 1))
    assert [timing.steps for timing in trained] == list(numbers.values())
    assert sum(timing.steps for timing in trained) == len(sheet.rows)
    assert all(timing.data_s <= timing.steps_s + 1e-9 for timing in trained)
    for timing in sheet.of("test"):
        assert timing.total_s >= 0
        parts_s = timing.loader_start_s + timing.steps_s + timing.loader_stop_s
        assert parts_s == pytest.approx(timing.total_s, rel=1e-6, abs=1e-9)
    updates = sum(1 for kind, *_ in loop.events if kind == e.STEPPED)
    assert len(sheet.rows) <= updates


@settings(deadline=None)
@given(any_events())
def test_events_in_any_order_leave_rows_that_are_consistent(loop: Loop) -> None:
    hold_what_always_holds(loop)


@settings(deadline=None)
@given(whole_loops())
def test_loops_of_any_kind_leave_rows_that_are_consistent(loop: Loop) -> None:
    hold_what_always_holds(loop)
    sheet = loop.detected()
    updates = sum(1 for kind, *_ in loop.events if kind == e.STEPPED)
    assert len(sheet.rows) == updates, "one optimiser: as many steps as updates"


@settings(deadline=None)
@given(st.one_of(nearly_plain_loops(), whole_loops(), any_events()), st.integers(1, 60))
def test_a_step_that_goes_like_one_before_gives_the_same_row(loop: Loop, at_once: int) -> None:
    assert loop.detected(at_once=at_once) == loop.detected(EventByEvent)


def test_plain_steps_are_taken_at_once() -> None:
    loop = Loop()
    loop.train(6)
    # The first shows what a step is like; what follows the last may belong to it.
    assert repeats_taken(loop) == [0, 4, 0, 0]

    loop.iterate(OTHER_LOADER)
    loop.step(OTHER_LOADER)
    loop.record(e.DETAIL, "off")
    for _ in range(6):
        loop.fetch(1, OTHER_LOADER)
        loop.update(9)
    loop.exhaust(1, OTHER_LOADER)
    assert repeats_taken(loop) == [0, 4, 0, 0, 0, 0, 4, 0, 0], "also without detail"


def _zeroes_last(loop: Loop) -> None:
    loop.step()
    loop.zero()


def _updates_in_a_closure(loop: Loop) -> None:
    loop.fetch()
    with loop.stepping():
        loop.zero()
        loop.accumulate()


def _accumulates(loop: Loop) -> None:
    for _ in range(3):
        loop.fetch()
        loop.accumulate()
    loop.update()


def _trains_two_in_turn(loop: Loop) -> None:
    loop.fetch()
    for module, optimizer in ((CRITIC, SGD), (MODEL, ADAM)):
        for _ in range(2):
            loop.call(2, module)
            loop.wait(1)
            loop.backward()
        loop.update(3, optimizer)


@pytest.mark.parametrize(
    "step", [_zeroes_last, _updates_in_a_closure, _accumulates, _trains_two_in_turn]
)
def test_many_kinds_of_steps_are_plain(step: Callable[[Loop], None]) -> None:
    loop = Loop()
    loop.iterate()
    for _ in range(10):
        step(loop)
    loop.exhaust()
    updates = sum(1 for kind, *_ in loop.events if kind == e.STEPPED)
    assert sum(repeats_taken(loop)) == updates * 8 // 10, "all but the first and the last"


def test_a_pattern_is_counted_as_often_as_it_comes_and_given_up_at_once() -> None:
    asked: list[int] = []

    class Column(list[int]):
        def __getitem__(self, which: Any) -> Any:
            asked.append(which.stop - which.start)
            return list.__getitem__(self, which)

    for comes in range(40):
        column = Column([0, *[1, 2] * comes, *[3, 4] * 5])
        found = _count_repeats(column, [1, 2], 1, comes + 5)
        assert comes - 2 <= found <= comes
        assert bool(found) == bool(comes)
    asked.clear()
    assert _count_repeats(Column([3, 4] * 1000), [1, 2], 0, 1000) == 0
    assert asked == [2]
