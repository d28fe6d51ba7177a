"""The live page as a person starts it: a process of its own on a free port of loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serve_client import Start, start_serving


@pytest.fixture(scope="module")
def serve() -> Iterator[Start]:
    """Start servers that are ended with the module."""
    with start_serving() as start:
        yield start
