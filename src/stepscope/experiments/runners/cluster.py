"""The nodes of a Ray cluster: which there are, what kind they are, whether they will do."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from stepscope import __version__
from stepscope.errors import MachineError, MissingExtraError, RequestError

AUTO = "auto"
_ANSWERS_WITHIN_S = 5.0
_NODES_ANSWER_WITHIN_S = 60.0
# How a client of HTTP/2, which Ray speaks, begins: a fixed greeting and no settings of its own. The
# server answers with a frame of settings (RFC 9113, 3.4 and 6.5).
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_FRAME_TYPE, _SETTINGS = 3, 4


@dataclass(frozen=True)
class Node:
    """A machine of the cluster; a trial takes all its CPUs and GPUs, so that nobody disturbs it."""

    id: str
    name: str
    kind: str
    cpus: float
    gpus: float


@contextmanager
def connected(address: str) -> Iterator[Pool]:
    """Be a driver of the cluster at an address, HOST:PORT or `auto`, for as long as this lasts.

    Raises:
        MissingExtraError: Ray is not installed.
        RequestError: the address is none.
        MachineError: no cluster answers there, or one of its nodes will not do.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("--on ray", "ray", "ray") from error
    _check_answers(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        where = "on this machine" if address == AUTO else f"at {address}"
        raise MachineError(
            f"wanted a Ray cluster {where} that this machine is a node of, found none: "
            f"{_first_line(error)} Begin one with `ray start --head`, join it with "
            "`ray start --address HOST:PORT`, and name it with --address HOST:PORT."
        ) from error
    # Ray prints to standard output what befalls the cluster, and that is for answers alone.
    with redirect_stdout(sys.stderr):
        try:
            pool = Pool()
            pool.wait_for_all()
            yield pool
        finally:
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Look within seconds whether a cluster is there: Ray itself would try for minutes."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise RequestError(f"address: wanted HOST:PORT or {AUTO}, found {address!r}.")
    try:
        with socket.create_connection((host, int(port)), _ANSWERS_WITHIN_S) as connection:
            connection.sendall(_GREETING)
            answer = connection.recv(9)
        if answer[_FRAME_TYPE : _FRAME_TYPE + 1] != bytes([_SETTINGS]):
            raise ConnectionError("somebody else is there")
    except (OSError, OverflowError) as error:
        raise MachineError(
            f"no Ray cluster answers at {address}: {_first_line(error)} Begin one with "
            "`ray start --head`, which prints its address."
        ) from error


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines() or [type(error).__name__]
    return said[0].rstrip(".") + "."


@dataclass
class Pool:
    """Nodes that will do, nodes that are being looked at, and nodes that will not do, with why."""

    ready: dict[str, Node] = field(default_factory=dict)
    looking: dict[Any, dict[str, Any]] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)

    def refresh(self) -> None:
        """Learn which nodes came and went; a new one is looked at before it is used.

        A node without CPUs for Ray takes no trials: that is how people keep a head node free.
        """
        import ray

        alive = {
            each["NodeID"]: each
            for each in ray.nodes()
            if each["Alive"] and each["Resources"].get("CPU", 0) > 0
        }
        self.ready = {name: node for name, node in self.ready.items() if name in alive}
        self.unfit = {name: why for name, why in self.unfit.items() if name in alive}
        known = {*self.ready, *self.unfit, *(each["NodeID"] for each in self.looking.values())}
        for name in alive.keys() - known:
            look = on_node(_look(), name, num_cpus=0)
            self.looking[look.remote(__version__)] = alive[name]

    def take_look(self, look: Any) -> None:
        """Take a node's answer; one that gave none is asked again while it is said to live."""
        import ray

        entry = self.looking.pop(look)
        node_id, resources = entry["NodeID"], entry["Resources"]
        name = f"{entry['NodeManagerHostname']}-{node_id[:6]}"
        try:
            kind, trouble = ray.get(look)
        except ray.exceptions.RayTaskError as error:
            kind, trouble = None, _first_line(error.cause or error)
        except ray.exceptions.RayError:
            return
        if kind is None:
            self.unfit[node_id] = f"node {name} {trouble}"
            return
        cpus, gpus = resources["CPU"], resources.get("GPU", 0.0)
        self.ready[node_id] = Node(node_id, name, kind, cpus, gpus)

    def lose(self, node: Node) -> None:
        """Forget a node that lost a trial: it is looked at again before it gets another."""
        self.ready.pop(node.id, None)

    @property
    def kinds(self) -> list[str]:
        """The kinds of node that there are now."""
        return list(dict.fromkeys(node.kind for node in self.ready.values()))

    def wait_for_all(self) -> None:
        """Look at every node.

        Raises:
            MachineError: one of them will not do, or there is none.
        """
        import ray

        until = time.monotonic() + _NODES_ANSWER_WITHIN_S
        self.refresh()
        while self.looking and time.monotonic() < until:
            for look in ray.wait(list(self.looking), timeout=1.0)[0]:
                self.take_look(look)
            self.refresh()
        if self.unfit:
            raise MachineError(
                f"{'; '.join(self.unfit.values())}. Every node wants stepscope {__version__}: "
                "install it there, or take the node out with `ray stop`."
            )
        if not self.ready:
            raise MachineError(
                "the Ray cluster has no node with CPUs that answers. Add one with "
                "`ray start --address HOST:PORT`."
            )


def on_node(function: Any, node_id: str, **resources: float) -> Any:
    """Make a remote function that runs on one node or not at all."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    affinity = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(function).options(max_retries=0, scheduling_strategy=affinity, **resources)


def _look() -> Any:
    # A function within a function travels as its code: the node may not have this module.
    def look(wanted: str) -> tuple[str | None, str | None]:
        try:
            import stepscope
        except ImportError:
            return None, "has no stepscope"
        if stepscope.__version__ != wanted:
            return None, f"has stepscope {stepscope.__version__}"
        from stepscope.experiments.runners.at_node import kind_of_machine

        return kind_of_machine(), None

    return look
