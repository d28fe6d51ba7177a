"""Hits are counted right, however the batches come."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.train.accuracy import COUNT_EVERY, RANKS, AccuracyCounter

CPU = torch.device("cpu")


def test_a_hand_worked_batch():
    scores = torch.tensor(
        [[9.0, 8, 7, 6, 5, 4, 3], [9.0, 8, 7, 6, 5, 4, 3], [1.0, 2, 3, 4, 5, 6, 7]]
    )
    hits = AccuracyCounter(CPU)
    assert hits.glance() is None
    hits.add(scores, torch.tensor([0, 2, 1]))  # first, third, sixth
    assert hits.total() == [1, 0, 1, 0, 0]
    assert hits.glance() == pytest.approx(1 / 3)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=2 * COUNT_EVERY + 3),
    st.integers(2, 12),
    st.integers(0, 2**31),
)
def test_many_batches_count_like_one(sizes, classes, seed):
    torch.manual_seed(seed)
    batches = [(torch.randn(n, classes), torch.randint(0, classes, (n,))) for n in sizes]
    one_by_one, at_once = AccuracyCounter(CPU), AccuracyCounter(CPU)
    for scores, labels in batches:
        one_by_one.add(scores, labels)
    at_once.add(torch.cat([s for s, _ in batches]), torch.cat([y for _, y in batches]))
    assert one_by_one.total() == at_once.total()
    assert sum(at_once.total()) <= sum(sizes)
    if classes <= RANKS:
        assert sum(at_once.total()) == sum(sizes), "with five classes all are among the first five"


def test_counting_goes_on_from_what_was_counted_before():
    hits = AccuracyCounter(CPU, [3, 2, 1, 0, 0], of_samples=7)
    hits.add(torch.tensor([[1.0, 0, 0, 0, 0]]), torch.tensor([0]))
    assert hits.total() == [4, 2, 1, 0, 0]
    assert hits.glance() == pytest.approx(4 / 8)
