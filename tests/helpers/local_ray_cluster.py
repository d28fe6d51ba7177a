"""A Ray cluster on loopback: nodes that are processes of the test, and can be killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from polling import free_port

_RAY = Path(sys.executable).with_name("ray")
_STARTED = "Ray runtime started"
_STARTS_WITHIN_S = 120


@dataclass
class Cluster:
    """A head and, if wanted, more nodes, with one CPU each. End it with `close`."""

    folder: str = field(default_factory=lambda: tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    port: int = field(default_factory=free_port)
    nodes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(self, **environment: str) -> subprocess.Popen[str]:
        """Start a node; the first is the head."""
        # Sockets lie in the folder, and their names must be short: not in pytest's own.
        role = ["--address", self.address]
        if not self.nodes:
            role = ["--head", "--port", str(self.port), "--temp-dir", self.folder]
            role += ["--include-dashboard", "false"]
        small = ["--num-cpus", "1", "--object-store-memory", str(80 * 1024**2)]
        node = subprocess.Popen(
            [_RAY, "start", "--block", *role, "--node-ip-address", "127.0.0.1", *small],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **environment},
        )
        self.nodes.append(node)
        _wait_for_start(node)
        return node

    def close(self) -> None:
        for node in reversed(self.nodes):
            kill(node)
        shutil.rmtree(self.folder, ignore_errors=True)


def kill(node: subprocess.Popen[str]) -> None:
    """End every process of a node at once, as when its power fails."""
    if node.poll() is None:
        processes = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(processes[1:], timeout=10)
    node.wait()
    if node.stdout is not None:
        node.stdout.close()


def _wait_for_start(node: subprocess.Popen[str]) -> None:
    assert node.stdout is not None
    timer = threading.Timer(_STARTS_WITHIN_S, node.kill)
    timer.start()
    said = []
    for line in node.stdout:
        said.append(line)
        if _STARTED in line:
            timer.cancel()
            return
    raise AssertionError(f"the node did not start: {''.join(said)}")
