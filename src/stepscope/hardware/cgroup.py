"""Control groups: the limits of this process, and a new group with a memory limit.

A group is only created below one that was delegated to this user; that root can write elsewhere is
no permission (https://systemd.io/CGROUP_DELEGATION/). Versions 1 and 2 are supported.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psutil

from stepscope.errors import MachineError
from stepscope.hardware.procfs import is_there, lines_of, matching, read_integer, read_text

_MOUNT = Path("/sys/fs/cgroup")
_PREFIX = "stepscope-"
_JOIN = 'echo 0 > "$0/cgroup.procs" || exit 125; [ $# = 0 ] || exec "$@"'
_REMOVE_WITHIN_S = 5.0

# Version 1 writes a number near 2^63 for "no limit".
_NO_LIMIT_BYTES = 2**62


@dataclass(frozen=True)
class ControlGroup:
    """A group with a memory limit, for one process and its descendants."""

    folder: Path

    def command(self, command: list[str]) -> list[str]:
        """Return a command that joins the group and then executes the given one."""
        return ["/bin/sh", "-c", _JOIN, str(self.folder), *command]

    def remove(self) -> None:
        """Kill the remaining processes of the group and remove it."""
        deadline = time.monotonic() + _REMOVE_WITHIN_S
        while is_there(self.folder) and time.monotonic() < deadline:
            for line in lines_of(self.folder / "cgroup.procs"):
                # 0 is a process of another namespace, and for kill our whole process group.
                if line.isdecimal() and int(line) > 1:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(int(line), signal.SIGKILL)
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.02)  # a killed process stays in its group until it has exited


def make(limit_bytes: int, below: list[Path] | None = None) -> ControlGroup:
    """Create a group that limits the memory of its processes, swap included.

    `below` are the groups to try, one after the other; by default ours and, in version 2, where a
    group with processes in it can have no limited children, the one above.
    """
    candidates = _candidates() if below is None else below
    reason = "this system has no control groups for memory"
    for parent in candidates:
        try:
            _check_handed_over(parent)
            return _make_below(parent, limit_bytes)
        except MachineError as error:
            reason = str(error)
        except OSError as error:
            reason = f"{parent}: {error.strerror}"
    raise MachineError(reason)


def own_and_above(controller: str = "memory") -> list[Path]:
    """List the groups of a controller that this process is in, each with its ancestors."""
    folders = []
    for line in lines_of(Path("/proc/self/cgroup")):
        _, controllers, name = line.split(":", 2)
        mount = _MOUNT / controller if controllers else _MOUNT
        if not controllers or controller in controllers.split(","):
            folder = mount / name.lstrip("/")
            folders += [folder, *(p for p in folder.parents if mount in (p, *p.parents))]
    return folders


def cpu_quota() -> float | None:
    """Return the CPU quota of this process in CPUs, by the tightest of its groups."""
    return min(filter(None, map(_quota_of, own_and_above("cpu"))), default=None)


def _quota_of(folder: Path) -> float | None:
    """Read the quota of one group: `max 100000` or, in version 1, two files with -1."""
    v1 = [read_text(folder / f"cpu.cfs_{name}_us").value or "" for name in ("quota", "period")]
    quota, _, period = (read_text(folder / "cpu.max").value or " ".join(v1)).partition(" ")
    known = quota.isdecimal() and period.isdecimal() and int(period) > 0
    return int(quota) / int(period) if known else None


def limit_of(folder: Path) -> int | None:
    """Return the memory limit of one group, if it has one."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        limit = read_integer(folder / name).value
        if limit is not None and limit < _NO_LIMIT_BYTES:
            return limit
    return None


def used_of(folder: Path) -> int | None:
    """Return the memory of a group, without file pages, which the kernel drops if needed."""
    for name, of_all in (("memory.current", ""), ("memory.usage_in_bytes", "total_")):
        used = read_integer(folder / name).value
        if used is not None:
            pages = dict(line.split(" ", 1) for line in lines_of(folder / "memory.stat"))
            files = (int(pages.get(f"{of_all}{kind}_file", 0)) for kind in ("active", "inactive"))
            return max(0, used - sum(files))
    return None


def kills_of(folder: Path) -> int | None:
    """Return the number of processes of a group that the kernel killed, out of memory."""
    for name in ("memory.events", "memory.oom_control"):
        for line in lines_of(folder / name):
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def limited() -> dict[Path, int]:
    """Return the groups of this process that have a limit, with the limit in bytes."""
    limits = {folder: limit_of(folder) for folder in own_and_above()}
    return {folder: limit for folder, limit in limits.items() if limit is not None}


def tightest(limits: dict[Path, int]) -> tuple[int, int] | None:
    """Return the limit and the free bytes of the group with the fewest free bytes."""
    rooms = [
        (max(0, limit - used), limit)
        for folder, limit in limits.items()
        if (used := used_of(folder)) is not None
    ]
    if not rooms:
        return None
    room, limit = min(rooms)
    return limit, room


def _candidates() -> list[Path]:
    known = [
        folder
        for folder in own_and_above()
        if any(is_there(folder / name) for name in ("memory.limit_in_bytes", "cgroup.controllers"))
    ]
    if not known or is_there(known[0] / "memory.limit_in_bytes"):
        return known[:1]
    # A sibling group would escape the limit of our own group.
    return known[:2] if limit_of(known[0]) is None else known[:1]


def _check_handed_over(parent: Path) -> None:
    if not os.access(parent, os.W_OK):
        raise MachineError(f"{parent} is not writable")
    if os.geteuid() != 0:
        return  # a user who is not root was given write access
    for mark in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(parent, mark) == b"1":
                return
    raise MachineError(f"{parent} is not delegated to this user")


def _make_below(parent: Path, limit_bytes: int) -> ControlGroup:
    remove_leftovers(parent)
    version_2 = is_there(parent / "cgroup.controllers")
    switch = parent / "cgroup.subtree_control"
    if version_2 and "memory" not in " ".join(lines_of(switch)).split():
        switch.write_text("+memory")
    group = ControlGroup(parent / f"{_PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}")
    group.folder.mkdir()
    try:
        if version_2:
            _write(group.folder / "memory.max", limit_bytes)
            for name in ("memory.swap.max", "memory.oom.group"):
                _write(group.folder / name, 0, where_it_exists=True)
        else:
            _write(group.folder / "memory.limit_in_bytes", limit_bytes)
            # Memory plus swap; may not be below the memory limit.
            _write(group.folder / "memory.memsw.limit_in_bytes", limit_bytes, where_it_exists=True)
        tried = subprocess.run(group.command([]), capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            raise MachineError(f"{parent}: a process could not be moved: {tried.stderr.strip()}")
    except BaseException:
        group.remove()
        raise
    return group


def remove_leftovers(parent: Path) -> None:
    """Remove groups whose creator is gone: a killed parent could not."""
    for folder in matching(parent, f"{_PREFIX}*"):
        maker = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if maker.isdecimal() and not psutil.pid_exists(int(maker)):
            with contextlib.suppress(OSError):  # something still runs in it
                folder.rmdir()


def _write(file: Path, value: int, *, where_it_exists: bool = False) -> None:
    if is_there(file) or not where_it_exists:
        file.write_text(str(value))
