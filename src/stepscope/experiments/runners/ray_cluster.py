"""The nodes of a Ray cluster: which there are, their kind, and whether they can make trials."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.errors import MachineError, RequestError, error_of, require_packages
from stepscope.experiments.runners.ray_task import Refusal
from stepscope.experiments.workload import Workload
from stepscope.records.types import SettingValue

# --- Is there a Ray cluster at an address? Answered within seconds: Ray itself tries for minutes


AUTO = "auto"
CANNOT_JOIN = (ConnectionError, RuntimeError, ValueError, TimeoutError)  # of `ray.init`
_ANSWERS_WITHIN_S = 5.0
JOINED_WITHIN_S = 8  # plus one or two seconds to start


def find_cluster(address: str) -> str:
    """Return the address, HOST:PORT, of the cluster at an address or, with `auto`, here.

    Raises:
        RequestError: the address is malformed.
        MachineError: no cluster answers there in time, or this machine is not a node of it.
    """
    if address != AUTO:
        place = host_and_port(address)
        try:
            socket.create_connection(place, _ANSWERS_WITHIN_S).close()
        except (OSError, OverflowError) as error:
            raise no_cluster(address, in_short(error)) from error
    tried = subprocess.run(
        [sys.executable, "-m", __name__, address, str(JOINED_WITHIN_S)],
        capture_output=True,
        text=True,
        check=False,
        # A file in the working directory may have the name of a library.
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    if tried.returncode == 0:
        return tried.stdout.split()[-1]
    why = f"it could not be joined within {JOINED_WITHIN_S} s."
    if tried.returncode != -signal.SIGALRM:
        why = in_short(tried.stdout or f"the attempt ended with {tried.returncode}")
    raise no_cluster(address, why)


def no_cluster(address: str, why: str) -> MachineError:
    """Return the error that a cluster cannot be joined."""
    where = "on this machine" if address == AUTO else f"at {address}"
    return MachineError(
        f"no Ray cluster answers {where}: {why} Start one with `ray start --head`, join it with "
        "`ray start --address HOST:PORT`, and name it with --address HOST:PORT."
    )


def host_and_port(address: str) -> tuple[str, int]:
    """Read HOST:PORT, an IPv6 address in brackets; refuse everything else."""
    host, _, port = address.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if in_brackets else host
    is_port = port.isascii() and port.isdecimal()
    if not host or not is_port or "/" in host or (":" in host) != in_brackets:
        raise RequestError(f"address: wanted HOST:PORT or {AUTO}, found {address!r}.")
    return host, int(port)


def in_short(said: object) -> str:
    """Return the first line of a message, as a sentence."""
    lines = str(said).strip().splitlines() or [type(said).__name__]
    return lines[0].rstrip(".") + "."


def _join(address: str, within_s: int) -> int:
    """Join a cluster and print its address, or why that fails.

    The alarm ends this process even while Ray ignores all other signals.
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


_ANSWER_WITHIN_S = 60.0


@dataclass(frozen=True)
class Node:
    """A machine of the cluster; a trial takes all its CPUs and GPUs."""

    id: str
    name: str
    kind: str
    cpus: float
    gpus: float


@contextmanager
def connected(address: str) -> Iterator[NodePool]:
    """Connect to the cluster at an address, HOST:PORT or `auto`; all its nodes must be fit."""
    require_packages("--on ray", "ray", "ray")
    import ray

    address = find_cluster(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except CANNOT_JOIN as error:
        raise no_cluster(address, in_short(error)) from error
    # Ray prints news of the cluster to standard output, which is for answers only.
    with redirect_stdout(sys.stderr):
        try:
            pool = NodePool()
            pool.wait_for_all()
            yield pool
        finally:
            ray.shutdown()


@dataclass
class NodePool:
    """Nodes that are ready, nodes that are being checked, and nodes that are unfit.

    `kind_of` keeps the kind of lost nodes too, `lost_at_s` when they were lost. `asked` are the
    settings that nodes check, as bytes: a node without stepscope could not unpickle them.
    """

    ready: dict[str, Node] = field(default_factory=dict)
    looking: dict[Any, Mapping[str, Any]] = field(default_factory=dict)
    unfit: dict[str, Refusal] = field(default_factory=dict)
    kind_of: dict[str, str] = field(default_factory=dict)
    lost_at_s: dict[str, float] = field(default_factory=dict)
    asked: bytes | None = None

    def ask_for(self, workload: Workload, settings: Sequence[Mapping[str, SettingValue]]) -> None:
        """Set the settings that nodes check from now on."""
        from ray import cloudpickle

        each_once = list({str(values): dict(values) for values in settings}.values())
        self.asked = cloudpickle.dumps((workload, each_once, str(Path.cwd())))
        self.unfit.clear()  # they may be fit for other settings

    def refresh(self) -> None:
        """Update the list of nodes, and check new ones; a node without CPUs takes no trials."""
        import ray

        alive = {
            each["NodeID"]: each
            for each in ray.nodes()
            if each["Alive"] and each["Resources"].get("CPU", 0) > 0
        }
        known: tuple[dict[str, Any], ...] = (self.ready, self.unfit, self.kind_of, self.lost_at_s)
        for nodes in known:
            for gone in nodes.keys() - alive.keys():
                del nodes[gone]
        answered = {*self.ready, *self.unfit}
        for node_id in alive.keys() - answered - {each["NodeID"] for each in self.looking.values()}:
            look = on_node(_look(), node_id, num_cpus=0).remote(__version__, self.asked)
            self.looking[look] = alive[node_id]

    def take_look(self, look: Any) -> Refusal | None:
        """Take a node's answer, and return its refusal; without an answer it is asked again."""
        import ray

        entry = self.looking.pop(look)
        node_id, resources = entry["NodeID"], entry["Resources"]
        name = f"{entry['NodeManagerHostname']}-{node_id[:6]}"
        try:
            kind, refusal = ray.get(look)
        except ray.exceptions.RayTaskError as error:
            refusal = (in_short(error.cause or error), MachineError.exit_code)
        except ray.exceptions.RayError:
            return None
        self.lost_at_s.pop(node_id, None)
        if refusal is not None:
            message, exit_code = refusal
            self.kind_of.pop(node_id, None)
            self.unfit[node_id] = Refusal(f"node {name}: {message}", exit_code)
            return self.unfit[node_id]
        self.kind_of[node_id] = kind
        cpus, gpus = resources["CPU"], resources.get("GPU", 0.0)
        self.ready[node_id] = Node(node_id, name, kind, cpus, gpus)
        return None

    def lose(self, node: Node) -> None:
        """Check a node again that lost a trial."""
        self.ready.pop(node.id, None)
        self.lost_at_s[node.id] = time.monotonic()

    def kinds(self, now_s: float) -> list[str]:
        """Return the kinds of nodes; one that was lost within the last minute may come back."""
        lately_s = now_s - _ANSWER_WITHIN_S
        there = (
            kind
            for node_id, kind in self.kind_of.items()
            if self.lost_at_s.get(node_id, now_s) >= lately_s
        )
        return list(dict.fromkeys(there))

    def wait_for_all(self) -> None:
        """Check every node again; raise the first refusal, or MachineError if none answers."""
        import ray

        until = time.monotonic() + _ANSWER_WITHIN_S
        self.looking.clear()
        for node in list(self.ready.values()):
            self.lose(node)
        self.refresh()
        while self.looking and time.monotonic() < until:
            for look in ray.wait(list(self.looking), timeout=1.0)[0]:
                self.take_look(look)
            self.refresh()
        for refusal in self.unfit.values():
            raise error_of(refusal.exit_code, refusal.message)
        if not self.ready:
            raise MachineError(
                "no node of the Ray cluster with CPUs answers. Add one with "
                "`ray start --address HOST:PORT`."
            )


def on_node(function: Any, node_id: str, **resources: float) -> Any:
    """Return a remote function that runs only on one node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    affinity = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(function).options(max_retries=0, scheduling_strategy=affinity, **resources)


def _look() -> Any:
    # A nested function is pickled by its code: the node may not have this module.
    unfit = MachineError.exit_code

    def look(wanted: str, asked: bytes | None) -> tuple[str | None, tuple[str, int] | None]:
        import pickle

        remedy = f"wanted {wanted}: install it there, or take the node out with `ray stop`."
        try:
            import stepscope
        except ImportError:
            return None, (f"it has no stepscope, {remedy}", unfit)
        if stepscope.__version__ != wanted:
            return None, (f"it has stepscope {stepscope.__version__}, {remedy}", unfit)
        from stepscope.experiments.runners.ray_task import check
        from stepscope.experiments.runners.runner import kind_of_machine

        refusal = None if asked is None else check(*pickle.loads(asked))
        if refusal is not None:
            return None, (refusal.message, refusal.exit_code)
        return kind_of_machine(), None

    return look


if __name__ == "__main__":
    sys.exit(_join(sys.argv[1], int(sys.argv[2])))
