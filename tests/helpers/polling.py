"""Wait for what another process does, and find a port for it."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def wait_until(happened: Callable[[], T], within_s: float = 120.0, every_s: float = 0.02) -> T:
    """Ask until the answer is true, and return it."""
    until = time.monotonic() + within_s
    while not (found := happened()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(every_s)
    return found


def recorded_sweep(folder: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    return info


def wait_for_trials(sweep: subprocess.Popen[str], runs: Path, completed: int) -> Path:
    """Wait until so many trials of the newest sweep are done, and return its folder."""
    folder = runs / "latest"

    def done() -> bool:
        assert sweep.poll() is None, sweep.communicate()
        if not (folder / "sweep.json").exists():
            return False
        statuses = [trial["status"] for trial in recorded_sweep(folder)["trials"]]
        return statuses.count("completed") >= completed

    wait_until(done, within_s=240)
    return folder.resolve()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
