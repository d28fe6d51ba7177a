"""A server for a test file, and a proxy that behaves well at the start of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from s3_server import Proxy, Server, serving


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Proxy]]:
    with serving(tmp_path_factory.mktemp("s3")) as both:
        yield both


@pytest.fixture
def proxy(servers: tuple[Server, Proxy]) -> Iterator[Proxy]:
    servers[1].requests.clear()
    servers[1].most_in_flight = 0
    yield servers[1]
    servers[1].well()
