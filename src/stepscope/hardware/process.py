"""A process tree, seen from outside: memory, CPU, I/O, page faults; and this process's rank.

Proportional sizes come from the kernel's `smaps_rollup`, which takes milliseconds for a large
process, so they are read separately.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psutil

from stepscope.hardware import host
from stepscope.hardware.procfs import read_at_once, sizes_in, stat_fields


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """List the children of a process, their children, and so on.

    Linux lists the children of a thread; psutil, used elsewhere, examines every process of the
    machine, which takes milliseconds. One that starts or ends meanwhile may be left out.
    """
    try:
        pids = list(_children(process.pid))
    except OSError:  # it has ended, or the kernel lists no children
        return process.children(recursive=True)
    found = []
    while pids:
        pid = pids.pop()
        try:
            found.append(psutil.Process(pid))
            pids += _children(pid)
        except (psutil.NoSuchProcess, OSError):
            continue  # it has just ended
    return found


def _children(pid: int) -> Iterator[int]:
    """Yield the children of all threads of a process."""
    threads = f"/proc/{pid}/task"
    for thread in os.listdir(threads):  # noqa: PTH208 - paths of pathlib take as long as the files
        yield from map(int, read_at_once(f"{threads}/{thread}/children").split())


@dataclass(frozen=True)
class TreeReading:
    """A process tree at one moment. None: unknown on this system, or not read."""

    processes: tuple[psutil.Process, ...]  # the main one first
    rss_bytes: int
    peak_rss_bytes: int | None
    shared_rss_bytes: int | None
    workers: int
    main_cpu_s: float
    workers_cpu_s: float
    read_bytes: int | None
    major_faults: int | None
    swap_bytes: int | None
    workers_private_bytes: int | None  # 0 without workers
    workers_pss_bytes: int | None
    pss_bytes: int | None = None  # of all


def read_tree(main: psutil.Process) -> TreeReading | None:
    """Read a process and its descendants, without the sizes that take milliseconds."""
    try:
        rss = int(main.memory_info().rss)
        cpu = main.cpu_times()
        workers = descendants(main)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    if rss == 0:
        return None  # a zombie: it has ended and was not waited for
    status = sizes_in(f"/proc/{main.pid}/status")
    worker_cpu = [used for worker in workers if (used := _ask(worker, "cpu_times")) is not None]
    read = [_ask(process, "io_counters") for process in (main, *workers)]
    processes = (main, *workers)
    statuses = [status, *(sizes_in(f"/proc/{worker.pid}/status") for worker in workers)]
    return TreeReading(
        processes=processes,
        rss_bytes=rss,
        peak_rss_bytes=status.get("VmHWM"),
        shared_rss_bytes=status.get("RssShmem"),
        workers=len(worker_cpu),
        main_cpu_s=cpu.user + cpu.system,
        workers_cpu_s=sum(used.user + used.system for used in worker_cpu),
        read_bytes=_total([getattr(each, "read_bytes", None) for each in read]),
        major_faults=_total([_major_faults(process.pid) for process in processes]),
        swap_bytes=_total([each.get("VmSwap") for each in statuses]),
        workers_private_bytes=None if workers else 0,
        workers_pss_bytes=None if workers else 0,
    )


def with_workers_sizes(tree: TreeReading) -> TreeReading:
    """Add the proportional and private sizes of the workers."""
    measured = [_sizes(process) for process in tree.processes[1:]]
    return replace(
        tree,
        workers_private_bytes=_total([private for _, private in measured], nothing=0),
        workers_pss_bytes=_total([pss for pss, _ in measured], nothing=0),
    )


def with_pss(tree: TreeReading) -> TreeReading:
    """Add the main process's proportional size to that of the workers."""
    pss_bytes, _ = _sizes(tree.processes[0])
    if pss_bytes is None or tree.workers_pss_bytes is None:
        return tree
    return replace(tree, pss_bytes=pss_bytes + tree.workers_pss_bytes)


@dataclass(frozen=True)
class WorkerMemory:
    """Measure workers and their batches, from the creation of this object on.

    Batches are in /dev/shm, which the whole machine shares: what other programs put there since
    counts too. Batches that the training process has mapped are part of its own size.
    """

    _shm_before_bytes: int | None = field(default_factory=host.shared_memory_used_bytes)

    def bytes_of(self, tree: TreeReading) -> int | None:
        """Return the workers' private bytes plus batches in flight; None if sizes are unknown."""
        if tree.workers_private_bytes is None:
            return None
        shm_now = host.shared_memory_used_bytes()
        in_flight = 0
        if shm_now is not None and self._shm_before_bytes is not None:
            in_flight = max(0, shm_now - self._shm_before_bytes - (tree.shared_rss_bytes or 0))
        return tree.workers_private_bytes + in_flight


def resident_bytes(process: psutil.Process) -> int | None:
    """Return the resident size of one process, in some 20 µs; None when it has ended."""
    return getattr(_ask(process, "memory_info"), "rss", 0) or None


def youngest_child(process: psutil.Process) -> psutil.Process | None:
    """Return the process that another one has started last, if any."""
    try:
        children = sorted(process.children(), key=psutil.Process.create_time, reverse=True)
        for child in children:
            if not any("resource_tracker" in word for word in child.cmdline()):
                return child
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        pass  # one of them has just ended: the next call finds the others
    return None


def _total(values: list[int | None], nothing: int | None = None) -> int | None:
    """Return the sum of the known values, or `nothing` if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else nothing


def _ask(process: psutil.Process, query: str) -> Any:
    """Return psutil's answer; None if the process has ended, or the system has no such figure."""
    try:
        return getattr(process, query)()
    except (psutil.NoSuchProcess, psutil.AccessDenied, AttributeError):
        return None


def _sizes(process: psutil.Process) -> tuple[int | None, int | None]:
    """Return the proportional and the private size."""
    full = _ask(process, "memory_full_info")
    return getattr(full, "pss", None), getattr(full, "uss", None)


def _major_faults(pid: int) -> int | None:
    """Return the number of page faults that needed the disk: field 12 of `stat`."""
    fields = stat_fields(f"/proc/{pid}")
    return int(fields[9]) if len(fields) > 9 else None


# --- The rank of this process


@dataclass(frozen=True)
class RankInfo:
    """The rank that torchrun gave this process, and a name of the training that all ranks share."""

    rank: int
    world_size: int
    run_id: str
    restarts: int = 0
    max_restarts: int = 0


def find_rank() -> RankInfo | None:
    """Return the rank of this process from torchrun's variables; None without torchrun."""
    variables = os.environ
    try:
        rank, world_size = int(variables.get("RANK", "")), int(variables.get("WORLD_SIZE", ""))
    except ValueError:
        return None
    if world_size < 2:
        return None
    identity = variables.get("TORCHELASTIC_RUN_ID", "none")
    if identity == "none":  # not given; the port may change when all are started again
        identity = "/".join(variables.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return RankInfo(
        rank,
        world_size,
        hashlib.sha256(identity.encode()).hexdigest()[:12],
        int(variables.get("TORCHELASTIC_RESTART_COUNT", "0")),
        int(variables.get("TORCHELASTIC_MAX_RESTARTS", "0")),
    )
