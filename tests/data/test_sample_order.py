"""Order and chance are functions of seed, epoch and position, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.data.sample_order import BLOCK, EpochOrder, chance, sample_order

seeds = st.integers(0, 2**63 - 1)
sizes = st.integers(1, 5000)


@given(sizes, seeds, st.integers(0, 1000), st.sampled_from(["full", "block", "none"]))
def test_an_epoch_takes_every_sample_once(samples, seed, epoch, shuffle):
    order = sample_order(samples, seed, epoch, shuffle)
    assert sorted(order.tolist()) == list(range(samples))


@given(sizes, seeds, st.integers(0, 100), st.integers(1, 600), st.data())
def test_skipping_batches_gives_the_rest_of_the_same_epoch(samples, seed, epoch, size, data):
    whole = [key.indices.tolist() for key in EpochOrder(samples, size, seed, "full", epoch)]
    skip = data.draw(st.integers(0, len(whole)))
    rest = EpochOrder(samples, size, seed, "full", epoch, skip)
    assert [key.indices.tolist() for key in rest] == whole[skip:]
    assert len(rest) == len(whole) - skip


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
    together = chance(seed, epoch, indices)
    one_by_one = [int(chance(seed, epoch, np.array([index]))[0]) for index in indices]
    assert together.tolist() == one_by_one


def test_chance_is_even_and_differs_by_epoch_and_seed():
    draws = chance(0, 1, np.arange(100_000))
    for bit in (0, 1, 17, 63):
        share = ((draws >> np.uint64(bit)) & np.uint64(1)).mean()
        assert share == pytest.approx(0.5, abs=0.01)
    assert len(np.unique(draws)) == len(draws)
    assert not np.array_equal(draws, chance(0, 2, np.arange(100_000)))
    assert not np.array_equal(draws, chance(1, 1, np.arange(100_000)))
