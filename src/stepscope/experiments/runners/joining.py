"""Is there a Ray cluster at an address? Found out within seconds: Ray itself tries for minutes.

First by a greeting, which tells whether anybody is there. Then by a process that joins the
cluster, since Ray cannot be stopped while it tries:
`python -m stepscope.experiments.runners.joining ADDRESS SECONDS`.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys

from stepscope.errors import MachineError, RequestError

AUTO = "auto"
CANNOT_JOIN = (ConnectionError, RuntimeError, ValueError, TimeoutError)  # of `ray.init`
_ANSWERS_WITHIN_S = 5.0
_JOINED_WITHIN_S = 8  # and a second or two to begin with: ten in all
# How a client of HTTP/2, which Ray speaks, begins: a fixed greeting and no settings of its own. The
# server answers with a frame of settings (RFC 9113, 3.4 and 6.5).
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_TYPE, _SETTINGS = 3, 4


def find_cluster(address: str, within_s: int = _JOINED_WITHIN_S) -> str:
    """Return the address, HOST:PORT, of the cluster that is at an address or, with `auto`, here.

    Raises:
        RequestError: the address is none.
        MachineError: no cluster answers there in time, or this machine is no node of it.
    """
    if address != AUTO:
        _greet(address)
    tried = subprocess.run(
        [sys.executable, "-m", __name__, address, str(within_s)],
        capture_output=True,
        text=True,
        check=False,
        # A file in the working directory that is called like a library must not be taken for it.
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    if tried.returncode == 0:
        return tried.stdout.split()[-1]
    why = f"it could not be joined within {within_s} s."
    if tried.returncode != -signal.SIGALRM:
        why = in_short(tried.stdout or f"the attempt ended with {tried.returncode}")
    raise no_cluster(address, why)


def no_cluster(address: str, why: str) -> MachineError:
    """Make the error that a cluster cannot be joined."""
    where = "" if address == AUTO else f" at {address}"
    return MachineError(
        f"wanted a Ray cluster{where} that this machine is a node of, found none: {why} Begin one "
        "with `ray start --head`, join it with `ray start --address HOST:PORT`, and name it with "
        "--address HOST:PORT."
    )


def host_and_port(address: str) -> tuple[str, int]:
    """Read HOST:PORT; a host that is a number with colons stands in brackets, as in a URL.

    Raises:
        RequestError: the address has another form.
    """
    host, _, port = address.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if in_brackets else host
    is_port = port.isascii() and port.isdecimal()
    if not host or not is_port or "/" in host or (":" in host) != in_brackets:
        raise RequestError(f"address: wanted HOST:PORT or {AUTO}, found {address!r}.")
    return host, int(port)


def in_short(said: object) -> str:
    """Give the first line of what somebody said, as a sentence."""
    lines = str(said).strip().splitlines() or [type(said).__name__]
    return lines[0].rstrip(".") + "."


def _greet(address: str) -> None:
    """Look whether somebody who may be a Ray cluster answers at all."""
    place = host_and_port(address)
    try:
        with socket.create_connection(place, _ANSWERS_WITHIN_S) as connection:
            connection.sendall(_GREETING)
            answer = connection.recv(9)
        if answer[_FRAME_TYPE : _FRAME_TYPE + 1] != bytes([_SETTINGS]):
            raise ConnectionError("somebody else is there")
    except (OSError, OverflowError) as error:
        raise MachineError(
            f"no Ray cluster answers at {address}: {in_short(error)} Begin one with "
            "`ray start --head`, which prints its address."
        ) from error


def _join(address: str, within_s: int) -> int:
    """Join a cluster and print its address, or why that cannot be.

    The alarm ends this process also while Ray is deaf to everything else.
    """
    import ray

    signal.alarm(within_s)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except CANNOT_JOIN as error:
        print(error)
        return 1
    signal.alarm(0)
    print(ray.get_runtime_context().gcs_address)
    return 0


if __name__ == "__main__":
    sys.exit(_join(sys.argv[1], int(sys.argv[2])))
