"""What tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from ray_cluster import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A Ray cluster that has no nodes yet."""
    with closing(Cluster()) as cluster:
        yield cluster
