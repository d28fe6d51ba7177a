"""Whether there is a Ray cluster is found out within seconds, whoever else is there."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import MachineError, RequestError
from stepscope.experiments.runners.ray_cluster import find_cluster, host_and_port


def test_a_server_that_is_no_ray_cluster_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(MachineError, match=f"at {address}: .* joined within 1 s"):
            find_cluster(address, within_s=1)


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("head.local:6379", ("head.local", 6379)),
        ("[::1]:6379", ("::1", 6379)),
        ("[fe80::1%eth0]:6379", ("fe80::1%eth0", 6379)),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, place: tuple[str, int]) -> None:
    assert host_and_port(address) == place


@pytest.mark.parametrize(
    "address",
    ["", ":", "host", "host:", ":1", "[]:1", "::1:1", "[::1]", "[host]:1", "host:६", "[:1:2"],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(RequestError, match="wanted HOST:PORT or auto"):
        host_and_port(address)


@given(st.text(st.characters(exclude_characters=":/[]"), min_size=1), st.integers(0, 10**6))
def test_any_host_is_read_back_with_its_port(host: str, port: int) -> None:
    assert host_and_port(f"{host}:{port}") == (host, port)


@given(st.text())
def test_any_other_text_is_read_or_refused(text: str) -> None:
    try:
        host, port = host_and_port(text)
    except RequestError:
        return
    assert text.endswith(f":{port}") or text.rpartition(":")[2].lstrip("0") in (str(port), "")
    assert host
