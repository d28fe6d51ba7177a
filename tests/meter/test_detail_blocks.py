"""Blocks of steps without detail: short, at random moments, only in long runs."""

from __future__ import annotations

import random
from itertools import pairwise

from stepscope.meter.detail_blocks import (
    BLOCK_EVERY_STEPS,
    BLOCK_STEPS,
    FIRST_AFTER_STEPS,
    OffBlocks,
)


def blocks_in(steps: int) -> list[tuple[int, int]]:
    blocks, found, begin = OffBlocks(), [], 0
    for step in range(steps):
        if blocks.switch(step):
            if blocks.off:
                begin = step
            else:
                found.append((begin, step))
    return found


def test_a_run_of_two_thousand_steps_has_none():
    assert blocks_in(FIRST_AFTER_STEPS) == []


def test_blocks_are_short_and_far_apart():
    found = blocks_in(20_000)
    assert len(found) > 20
    assert {end - begin for begin, end in found} == {BLOCK_STEPS}
    gaps = [after - end for (_, end), (after, _) in pairwise(found)]
    assert BLOCK_EVERY_STEPS[0] <= min(gaps) < max(gaps) <= BLOCK_EVERY_STEPS[1]


def test_the_programs_own_random_numbers_are_left_alone():
    random.seed(7)
    before = random.getstate()
    blocks_in(10_000)
    assert random.getstate() == before
