"""The rule about a run's memory, told from scripted readings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.supervisor.memory_guard import Action, Limits, MemoryPool, MemoryReading, decide

GIB = 2**30
MIB = 2**20
ROOMY = MemoryPool("machine", 16 * GIB, 12 * GIB)


def machine(available_bytes: int, total_bytes: int = 16 * GIB) -> tuple[MemoryPool, ...]:
    return (MemoryPool("machine", total_bytes, available_bytes),)


# --- a limit of the run's own ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used_bytes", "workers", "action"),
    [
        (1 * GIB, 0, Action.NOTHING),
        (round(1.89 * GIB), 4, Action.NOTHING),
        (round(1.92 * GIB), 0, Action.ASK),
        (round(1.92 * GIB), 2, Action.END_WORKER),
        (2 * GIB, 0, Action.ASK),
        (2 * GIB + 1, 0, Action.KILL),
        (2 * GIB + 1, 2, Action.KILL),
    ],
)
def test_a_run_near_its_limit_ends_politely_and_one_over_it_at_once(used_bytes, workers, action):
    reading = MemoryReading(used_bytes, (ROOMY,), workers)
    assert decide(reading, Limits(2 * GIB)) is action


def test_workers_go_one_by_one_with_a_pause_and_then_the_training_is_asked_once():
    near, limits = round(0.97 * 2 * GIB), Limits(2 * GIB)
    told = [
        decide(MemoryReading(near, (ROOMY,), 2), limits),
        decide(MemoryReading(near, (ROOMY,), 2, acted_s=0.2), limits),
        decide(MemoryReading(near, (ROOMY,), 1, acted_s=2.0), limits),
        decide(MemoryReading(near, (ROOMY,), 0, acted_s=0.2), limits),
        decide(MemoryReading(near, (ROOMY,), 0, acted_s=2.0), limits),
        decide(MemoryReading(near, (ROOMY,), 0, acted_s=0.1, asked_s=0.1), limits),
        decide(MemoryReading(near, (ROOMY,), 0, acted_s=60.0, asked_s=60.0), limits),
    ]
    nothing, worker, ask = Action.NOTHING, Action.END_WORKER, Action.ASK
    assert told == [worker, nothing, worker, nothing, ask, nothing, nothing]


def test_a_run_that_was_asked_and_breaks_its_limit_all_the_same_is_killed():
    reading = MemoryReading(2 * GIB + 1, (ROOMY,), acted_s=0.1, asked_s=0.1)
    assert decide(reading, Limits(2 * GIB)) is Action.KILL


# --- the machine's memory -------------------------------------------------------------------------


def test_a_run_that_fills_the_machine_is_asked_and_then_killed():
    floor = Limits().floor_bytes(ROOMY)
    assert decide(MemoryReading(14 * GIB, machine(floor + 1)), Limits()) is Action.NOTHING
    assert decide(MemoryReading(14 * GIB, machine(floor - 1)), Limits()) is Action.ASK
    assert decide(MemoryReading(14 * GIB, machine(floor // 2 - 1)), Limits()) is Action.KILL


def test_a_small_run_is_left_alone_whatever_others_do_to_the_machine():
    reading = MemoryReading(
        2 * GIB, machine(0), swap_growth_bytes=GIB, pressure_percent=99.0, asked_s=99.0
    )
    assert decide(reading, Limits()) is Action.NOTHING


def test_a_full_container_counts_although_the_machine_has_room():
    container = MemoryPool("container", 4 * GIB, 10 * MIB)
    assert decide(MemoryReading(3 * GIB, (ROOMY, container)), Limits()) is Action.KILL


def test_a_small_board_keeps_64_mib():
    board = MemoryPool("machine", 2 * GIB, 60 * MIB)
    assert Limits().floor_bytes(board) == 64 * MIB
    assert decide(MemoryReading(GIB + GIB // 2, (board,)), Limits()) is Action.ASK


@pytest.mark.parametrize(
    ("growth_bytes", "pressure", "action"),
    [
        (100 * MIB, 50.0, Action.ASK),
        (100 * MIB, 1.0, Action.NOTHING),
        (100 * MIB, None, Action.NOTHING),
        (0, 50.0, Action.NOTHING),
        (-MIB, 50.0, Action.NOTHING),
    ],
)
def test_being_swapped_under_pressure_ends_a_run_but_neither_does_alone(
    growth_bytes, pressure, action
):
    reading = MemoryReading(
        14 * GIB, machine(GIB), swap_growth_bytes=growth_bytes, pressure_percent=pressure
    )
    assert decide(reading, Limits()) is action


def test_a_run_that_is_swapped_on_long_after_it_was_asked_is_killed():
    swapped = MemoryReading(14 * GIB, machine(GIB), swap_growth_bytes=MIB, pressure_percent=80.0)
    assert decide(replace(swapped, acted_s=2.0, asked_s=2.0), Limits()) is Action.NOTHING
    assert decide(replace(swapped, acted_s=30.0, asked_s=30.0), Limits()) is Action.KILL


# --- whatever is read -----------------------------------------------------------------------------

SIZES = st.integers(0, 64 * GIB)


@st.composite
def pools(draw):
    total = draw(st.integers(MIB, 64 * GIB))
    return MemoryPool(
        draw(st.sampled_from(["machine", "container"])), total, draw(st.integers(0, total))
    )


READINGS = st.builds(
    MemoryReading,
    used_bytes=SIZES,
    pools=st.lists(pools(), max_size=2).map(tuple),
    workers=st.integers(0, 4),
    swap_growth_bytes=st.integers(-GIB, GIB),
    pressure_percent=st.none() | st.floats(0, 100),
    acted_s=st.none() | st.floats(0, 100),
    asked_s=st.none() | st.floats(0, 100),
)
LIMITS = st.builds(Limits, limit_bytes=st.none() | st.integers(1, 64 * GIB))
SEVERITY = list(Action)


@given(READINGS, LIMITS)
def test_a_worker_is_ended_only_where_there_is_one_and_nobody_is_asked_twice(reading, limits):
    action = decide(reading, limits)
    if action is Action.END_WORKER:
        assert reading.workers > 0
    if action is Action.ASK:
        assert reading.workers == 0
    if reading.asked_s is not None:
        assert action in (Action.NOTHING, Action.KILL)


@given(READINGS)
def test_without_a_limit_a_run_with_less_than_half_of_what_is_in_use_is_never_touched(reading):
    small = all(
        reading.used_bytes <= (pool.total_bytes - pool.available_bytes) / 2
        for pool in reading.pools
    )
    if small:
        assert decide(reading, Limits()) is Action.NOTHING


@given(READINGS, LIMITS, SIZES)
def test_more_memory_used_never_asks_for_less_to_be_done(reading, limits, more_bytes):
    more = replace(reading, used_bytes=reading.used_bytes + more_bytes)
    before, after = decide(reading, limits), decide(more, limits)
    assert SEVERITY.index(after) >= SEVERITY.index(before)


@given(READINGS, LIMITS)
def test_over_its_limit_a_run_is_killed_whatever_else_is_so(reading, limits):
    if limits.limit_bytes is not None and reading.used_bytes > limits.limit_bytes:
        assert decide(reading, limits) is Action.KILL
