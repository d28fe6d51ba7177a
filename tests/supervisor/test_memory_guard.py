"""The rule about a run's memory, told from scripted readings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.supervisor.memory_guard import Action, MemoryPool, MemoryReading, decide

GIB = 2**30
MIB = 2**20
ROOMY = MemoryPool("machine", 16 * GIB, 12 * GIB)


def machine(available_bytes: int, total_bytes: int = 16 * GIB) -> tuple[MemoryPool, ...]:
    return (MemoryPool("machine", total_bytes, available_bytes),)


NEAR = round(0.97 * 2 * GIB)  # of a limit of 2 GiB
FLOOR = ROOMY.floor_bytes
FULL = MemoryPool("container", 4 * GIB, 10 * MIB)
BOARD = MemoryPool("machine", 2 * GIB, 60 * MIB)  # which keeps 64 MiB
SWAPPED = MemoryReading(14 * GIB, machine(GIB), swap_growth_bytes=MIB, pressure_percent=80.0)


@pytest.mark.parametrize(
    ("reading", "action"),
    [
        (MemoryReading(1 * GIB), Action.NOTHING),
        (MemoryReading(round(1.89 * GIB), workers=4), Action.NOTHING),
        (MemoryReading(round(1.92 * GIB)), Action.ASK),
        (MemoryReading(round(1.92 * GIB), workers=2), Action.END_WORKER),
        (MemoryReading(2 * GIB), Action.ASK),
        (MemoryReading(2 * GIB + 1), Action.KILL),
        (MemoryReading(2 * GIB + 1, workers=2), Action.KILL),
        (MemoryReading(2 * GIB + 1, acted_s=0.1, asked_s=0.1), Action.KILL),
        # Workers go one by one, with a pause; then the training is asked once.
        (MemoryReading(NEAR, workers=2), Action.END_WORKER),
        (MemoryReading(NEAR, workers=2, acted_s=0.2), Action.NOTHING),
        (MemoryReading(NEAR, workers=1, acted_s=2.0), Action.END_WORKER),
        (MemoryReading(NEAR, acted_s=0.2), Action.NOTHING),
        (MemoryReading(NEAR, acted_s=2.0), Action.ASK),
        (MemoryReading(NEAR, acted_s=0.1, asked_s=0.1), Action.NOTHING),
        (MemoryReading(NEAR, acted_s=60.0, asked_s=60.0), Action.NOTHING),
    ],
)
def test_a_run_near_its_limit_ends_politely_and_one_over_it_at_once(reading, action):
    assert decide(replace(reading, pools=(ROOMY,)), 2 * GIB) is action


@pytest.mark.parametrize(
    ("reading", "action"),
    [
        (MemoryReading(14 * GIB, machine(FLOOR + 1)), Action.NOTHING),
        (MemoryReading(14 * GIB, machine(FLOOR - 1)), Action.ASK),
        (MemoryReading(14 * GIB, machine(FLOOR // 2 - 1)), Action.KILL),
        # A small run is left alone whatever others do to the machine.
        (replace(SWAPPED, used_bytes=2 * GIB, pools=machine(0), asked_s=99.0), Action.NOTHING),
        (MemoryReading(3 * GIB, (ROOMY, FULL)), Action.KILL),
        (MemoryReading(GIB + GIB // 2, (BOARD,)), Action.ASK),
        # To be swapped under pressure ends a run; neither does alone.
        (SWAPPED, Action.ASK),
        (replace(SWAPPED, pressure_percent=1.0), Action.NOTHING),
        (replace(SWAPPED, pressure_percent=None), Action.NOTHING),
        (replace(SWAPPED, swap_growth_bytes=0), Action.NOTHING),
        (replace(SWAPPED, swap_growth_bytes=-MIB), Action.NOTHING),
        (replace(SWAPPED, acted_s=2.0, asked_s=2.0), Action.NOTHING),
        (replace(SWAPPED, acted_s=30.0, asked_s=30.0), Action.KILL),
    ],
)
def test_a_run_that_fills_its_machine_is_asked_to_end_and_then_killed(reading, action):
    assert decide(reading, None) is action


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
LIMITS = st.none() | st.integers(1, 64 * GIB)
SEVERITY = list(Action)


@given(READINGS, LIMITS)
def test_a_worker_is_ended_only_where_there_is_one_and_nobody_is_asked_twice(reading, limit):
    action = decide(reading, limit)
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
        assert decide(reading, None) is Action.NOTHING


@given(READINGS, LIMITS, SIZES)
def test_more_memory_used_never_asks_for_less_to_be_done(reading, limit, more_bytes):
    more = replace(reading, used_bytes=reading.used_bytes + more_bytes)
    before, after = decide(reading, limit), decide(more, limit)
    assert SEVERITY.index(after) >= SEVERITY.index(before)


@given(READINGS, LIMITS)
def test_over_its_limit_a_run_is_killed_whatever_else_is_so(reading, limit):
    if limit is not None and reading.used_bytes > limit:
        assert decide(reading, limit) is Action.KILL
