"""Any number of values become few, and what was extreme is still to be seen."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyze.downsample import thin

VALUES = st.lists(st.none() | st.floats(-1e9, 1e9), max_size=300)
MOST = st.integers(1, 50)


@given(VALUES, MOST)
def test_buckets_are_few_and_in_order_and_keep_the_extremes(values, most):
    buckets = list(thin(range(len(values)), values, most))
    known = [value for value in values if value is not None]
    assert len(buckets) <= most
    assert bool(buckets) == bool(known)
    if known:
        assert min(bucket.least for bucket in buckets) == min(known)
        assert max(bucket.most for bucket in buckets) == max(known)
    assert all(bucket.least <= bucket.mean <= bucket.most for bucket in buckets)
    places = [bucket.at for bucket in buckets]
    assert places == sorted(set(places))


@given(st.lists(st.floats(-1e6, 1e6), max_size=50))
def test_few_values_stay_as_they_are(values):
    buckets = list(thin(range(len(values)), values, 50))
    assert [bucket.mean for bucket in buckets] == values


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_went_astray_spoils_no_bucket(bad):
    (bucket,) = thin(range(3), [1.0, bad, 3.0], 1)
    assert (bucket.mean, bucket.least, bucket.most) == (2.0, 1.0, 3.0)


def test_columns_of_one_table_fall_into_the_same_buckets():
    whole = [float(value) for value in range(1000)]
    half = [value if value % 2 else None for value in whole]
    places = [[bucket.at for bucket in thin(range(1000), each, 7)] for each in (whole, half)]
    assert places[0] == places[1]
