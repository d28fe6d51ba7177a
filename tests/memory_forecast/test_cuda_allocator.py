"""What a caching allocator reserves: cases worked out by hand, and what holds for any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.memory_forecast.cuda_allocator import CachingAllocator, reserved_for
from stepscope.models.step_tensors import (
    BACKWARD,
    FORWARD,
    NO_OPTIMIZER,
    Block,
    OptimizerMemory,
    StepLog,
)

MIB = 2**20
sizes = st.integers(1, 64 * MIB)


@pytest.mark.parametrize(
    ("tensors_mib", "reserved_mib"),
    [
        ([0.5, 0.5, 1.0], 2),  # three small ones share a segment
        ([1.0, 1.0, 1.0], 4),
        ([2.0] * 10, 20),  # ten of middle size fill a segment of 20 MiB
        ([2.0] * 11, 40),
        ([10.5], 12),  # a large one has a segment of its own, in steps of 2 MiB
        ([5.0, 15.0], 20),  # or the rest of another's
        ([0.1, 5.0, 15.5], 2 + 20 + 16),
    ],
)
def test_segments_are_those_of_the_rules(tensors_mib, reserved_mib):
    allocator = CachingAllocator()
    for size in tensors_mib:
        allocator.take(round(size * MIB))
    assert allocator.reserved_bytes == reserved_mib * MIB


@pytest.mark.parametrize(
    ("made_mib", "freed", "then_mib", "reserved_mib"),
    [
        ([8, 8], [0, 1], 20, 20),  # neighbours become one hole
        ([6, 14], [0], 7, 2 * 20),  # a hole between two tensors is too small
    ],
)
def test_a_hole_is_reused_if_it_is_large_enough(made_mib, freed, then_mib, reserved_mib):
    allocator = CachingAllocator()
    pieces = [allocator.take(size * MIB) for size in made_mib]
    for number in freed:
        allocator.give_back(pieces[number])
    allocator.take(then_mib * MIB)
    assert allocator.reserved_bytes == reserved_mib * MIB


@given(st.lists(st.tuples(sizes, st.booleans()), max_size=40))
def test_it_holds_what_is_in_use_and_gives_nothing_back(made):
    allocator, held, in_use, before = CachingAllocator(), [], 0, 0
    for size, goes in made:
        held.append((size, allocator.take(size)))
        in_use += size
        assert allocator.reserved_bytes >= max(in_use, before)
        before = allocator.reserved_bytes
        if goes:
            size, piece = held.pop(0)
            allocator.give_back(piece)
            in_use -= size
        assert allocator.reserved_bytes == before


@given(st.lists(sizes, min_size=1, max_size=30))
def test_when_all_is_given_back_the_largest_tensor_finds_room_again(made):
    allocator = CachingAllocator()
    pieces = [allocator.take(size) for size in made]
    reserved_bytes = allocator.reserved_bytes
    for piece in pieces:
        allocator.give_back(piece)
    allocator.take(max(made))
    assert allocator.reserved_bytes == reserved_bytes


def step_log(*activations_mib: int) -> StepLog:
    """Weights of 12 MiB, activations that go again, gradients of 12 MiB."""
    blocks = [Block("parameters", 12 * MIB)]
    blocks += [Block("activations", size * MIB) for size in activations_mib]
    blocks += [Block("gradients", 12 * MIB)]
    made = list(range(1, len(blocks) + 1))
    kept = made[1:-1]
    events = (*made[:-1], *(-number for number in reversed(kept)), made[-1])
    return StepLog(2, tuple(blocks), events, {FORWARD: len(made) - 1, BACKWARD: len(events)})


ADAM = OptimizerMemory(state=2.0, temporary=1.0)


@pytest.mark.parametrize(
    ("activations_mib", "optimizer", "reserved_mib"),
    [
        (16, NO_OPTIMIZER, 12 + 16),  # gradients take the place of activations
        (16, ADAM, 12 + 16 + 24 + 12),  # state and temporaries come on top
        (64, ADAM, 12 + 64 + 64),  # state where activations were: the second step reserves anew
    ],
)
def test_steps_reserve_what_the_rules_give(activations_mib, optimizer, reserved_mib):
    assert reserved_for(step_log(activations_mib), optimizer) == reserved_mib * MIB
