"""A batch is made right, and made the same by both pipelines."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.data.image_transforms import PADDING
from stepscope.data.loaders.dataloader import make_loader
from stepscope.data.record_dataset import RecordBatches
from stepscope.data.sample_order import BatchKey, EpochOrder
from stepscope.data.samples import MemorySamples

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def some_samples(count: int = 40) -> MemorySamples:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return MemorySamples(images, np.arange(count) % 10)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 39), min_size=1, max_size=20, unique=True),
    st.integers(0, 2**63 - 1),
    st.integers(0, 1000),
    st.booleans(),
)
def test_both_pipelines_make_the_same_batch_to_the_bit(indices, seed, epoch, augmented):
    key = BatchKey(epoch, np.array(indices))
    augment_seed = seed if augmented else None
    whole, single = (
        RecordBatches(some_samples(), pipeline, MEAN, STD, augment_seed)[key]
        for pipeline in ("batch", "sample")
    )
    assert all(map(torch.equal, whole, single))
    assert [each.dtype for each in whole] == [torch.float32, torch.int64]


def test_normalisation_is_pixel_over_255_less_mean_over_deviation():
    samples = some_samples()
    images, labels = RecordBatches(samples, "batch", MEAN, STD, None)[BatchKey(1, np.array([7]))]
    wanted = (samples.images[7] / 255 - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))
    np.testing.assert_allclose(images[0].numpy(), wanted, rtol=1e-5, atol=1e-5)
    assert labels.tolist() == [7]


def test_every_crop_and_flip_comes_up():
    dataset = RecordBatches(some_samples(), "batch", MEAN, STD, augment_seed=5)
    seen = {dataset[BatchKey(epoch, np.array([0]))][0].numpy().tobytes() for epoch in range(3000)}
    assert len(seen) > 0.95 * 2 * (2 * PADDING + 1) ** 2


def test_making_a_loader_leaves_the_trainings_random_numbers_alone():
    dataset = RecordBatches(some_samples(), "batch", MEAN, STD, augment_seed=1)
    order = EpochOrder(40, 16, seed=1, shuffle="full")
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    list(make_loader(dataset, order, workers=0))
    assert torch.equal(torch.rand(3), wanted)
