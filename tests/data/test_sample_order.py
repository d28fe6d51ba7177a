"""Order and chance are functions of seed, epoch and position, and of nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.data.sample_order import BLOCK, EpochOrder, hold_out, random_bits, sample_order
from stepscope.errors import RequestError

seeds = st.integers(0, 2**63 - 1)
sizes = st.integers(1, 5000)


@given(sizes, seeds, st.integers(0, 1000), st.sampled_from(["full", "block", "none"]))
def test_an_epoch_takes_every_sample_once(samples, seed, epoch, shuffle):
    order = sample_order(samples, seed, epoch, shuffle)
    assert sorted(order.tolist()) == list(range(samples))


@given(sizes, seeds, st.integers(0, 100), st.integers(1, 600), st.data())
def test_skipping_batches_gives_the_rest_of_the_same_epoch(samples, seed, epoch, size, data):
    held = hold_out(samples, validation := data.draw(st.integers(0, samples - 1)))
    order = EpochOrder(
        samples - validation, size, seed, "full", epoch, chosen=None if held is None else ~held
    )
    whole = [key.indices.tolist() for key in order]
    order.skip = data.draw(st.integers(0, len(whole)))
    assert [key.indices.tolist() for key in order] == whole[order.skip :]
    assert len(order) == len(whole) - order.skip


def test_epochs_and_seeds_differ():
    orders = {tuple(sample_order(100, seed, epoch, "full")) for seed in (0, 1) for epoch in (1, 2)}
    assert len(orders) == 4


def test_block_order_keeps_the_samples_of_a_block_together():
    order = sample_order(4500, seed=3, epoch=1, shuffle="block")
    blocks = [index // BLOCK for index in order]
    runs = [block for i, block in enumerate(blocks) if i == 0 or blocks[i - 1] != block]
    assert sorted(runs) == [0, 1, 2, 3, 4]
    assert runs != sorted(runs), "the blocks are shuffled"
    assert order[:BLOCK].tolist() != sorted(order[:BLOCK]), "and so are the samples in them"


@given(seeds, st.integers(0, 1000))
def test_the_chance_of_a_sample_does_not_depend_on_its_neighbours(seed, epoch):
    indices = np.arange(50)
    together = random_bits(seed, epoch, indices)
    one_by_one = [int(random_bits(seed, epoch, np.array([index]))[0]) for index in indices]
    assert together.tolist() == one_by_one


def test_chance_is_even_and_differs_by_epoch_and_seed():
    draws = random_bits(0, 1, np.arange(100_000))
    for bit in (0, 1, 17, 63):
        share = ((draws >> np.uint64(bit)) & np.uint64(1)).mean()
        assert share == pytest.approx(0.5, abs=0.01)
    assert len(np.unique(draws)) == len(draws)
    assert not np.array_equal(draws, random_bits(0, 2, np.arange(100_000)))
    assert not np.array_equal(draws, random_bits(1, 1, np.arange(100_000)))


# --- held-out samples


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
    assert hold_out(20, 0) is None
    assert more[KNOWN].all()  # who holds out more holds out the same and others


@pytest.mark.parametrize("validation", [10, 11, -1])
def test_something_must_be_left_to_train_on(validation):
    with pytest.raises(RequestError, match=r"wanted fewer than the 10 .*Hold out fewer"):
        hold_out(10, validation)
