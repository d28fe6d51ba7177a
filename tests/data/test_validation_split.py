"""Which samples are held out, and that nobody trains on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.data.sample_order import EpochOrder
from stepscope.data.validation_split import hold_out
from stepscope.errors import RequestError

KNOWN = [1, 3, 5, 10, 15]  # of 20 samples


@st.composite
def parts(draw):
    samples = draw(st.integers(2, 3000))
    return samples, draw(st.integers(1, samples - 1))


@given(parts(), st.integers(0, 9), st.sampled_from(["full", "block"]), st.integers(1, 400))
def test_an_epoch_and_the_held_out_samples_are_all_samples_once(part, seed, shuffle, batch_size):
    samples, validation = part
    held = hold_out(samples, validation)
    order = EpochOrder(samples - validation, batch_size, seed, shuffle, epoch=3, chosen=~held)
    trained = np.concatenate([key.indices for key in order])
    assert len(list(order)) == len(order)
    assert sorted([*trained, *np.flatnonzero(held)]) == list(range(samples))


@given(parts(), st.integers(0, 5))
def test_an_order_of_some_samples_can_be_taken_up_at_any_batch(part, skip):
    samples, validation = part
    chosen = ~hold_out(samples, validation)
    whole = EpochOrder(samples - validation, 7, 1, "full", epoch=2, chosen=chosen)
    rest = EpochOrder(samples - validation, 7, 1, "full", epoch=2, chosen=chosen, skip=skip)
    expected = [key.indices.tolist() for key in whole][skip:]
    assert [key.indices.tolist() for key in rest] == expected


def test_blocks_of_an_order_stay_where_the_samples_lie():
    chosen = ~hold_out(3000, 1200)
    order = EpochOrder(1800, 1800, 5, "block", epoch=1, chosen=chosen)
    [key] = order
    blocks = (key.indices // 1000).tolist()
    assert [block for place, block in enumerate(blocks) if block != blocks[place - 1]] == [
        *dict.fromkeys(blocks)
    ]


def test_the_choice_is_the_same_for_ever():
    assert np.flatnonzero(hold_out(20, 5)).tolist() == KNOWN
    more = hold_out(20, 9)
    assert more[KNOWN].all()  # who holds out more holds out the same and others


@pytest.mark.parametrize("validation", [10, 11, -1])
def test_something_must_be_left_to_train_on(validation):
    with pytest.raises(RequestError, match=r"wanted fewer samples than the 10 .*Hold out fewer"):
        hold_out(10, validation)


def test_nothing_is_held_out_unless_it_is_asked_for():
    assert hold_out(10, 0) is None
