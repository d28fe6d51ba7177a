"""Batches that are in memory already."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stepscope.data.datasets.synthetic import DirectLoader, SyntheticBatches
from stepscope.data.sample_order import BatchKey, EpochOrder

SHAPE = (3, 4, 4)


def batches(batch_size: int = 8, seed: int = 0) -> SyntheticBatches:
    return SyntheticBatches(torch.zeros(batch_size, *SHAPE), 10, seed)


def key(samples: int) -> BatchKey:
    return BatchKey(1, np.arange(samples))


def test_it_is_the_same_batch_again_and_again_without_a_copy():
    made = batches()
    assert made[key(8)] is made[key(8)]
    whole, part = made[key(8)][0], made[key(3)][0]
    assert part.data_ptr() == whole.data_ptr()


def test_images_and_labels_are_what_a_network_takes():
    images, labels = batches(64)[key(64)]
    assert (images.shape, images.dtype) == ((64, *SHAPE), torch.float32)
    assert (labels.shape, labels.dtype) == ((64,), torch.int64)
    assert 0 <= labels.min() <= labels.max() < 10
    assert images.std() == pytest.approx(1, abs=0.2)


def test_it_depends_on_the_seed_and_draws_nothing_from_torch():
    random = torch.get_rng_state()
    one, again, other = batches(seed=1), batches(seed=1), batches(seed=2)
    assert torch.equal(one[key(8)][0], again[key(8)][0])
    assert not torch.equal(one[key(8)][0], other[key(8)][0])
    assert torch.equal(random, torch.get_rng_state())


@given(samples=st.integers(1, 100), batch_size=st.integers(1, 40), skip=st.integers(0, 3))
def test_an_epoch_has_the_batches_that_its_data_set_would_have(samples, batch_size, skip):
    order = EpochOrder(samples, batch_size, 0, "none", skip=skip)
    given_out = [len(labels) for _, labels in DirectLoader(batches(batch_size), order)]
    assert given_out == [len(key.indices) for key in order]
