"""The processes below another one, found from it downwards."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil

from stepscope.hardware.pseudo_files import read_at_once


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """List the children of a process, their children, and so on.

    Linux lists the children of a thread, so that only the threads of the tree are asked; psutil
    looks at every process of the machine (1.4 ms where there are 87) and is asked elsewhere. One
    that starts or ends meanwhile may be left out.

    Raises:
        psutil.NoSuchProcess: the process itself has ended.
    """
    try:
        pids = list(_children(process.pid))
    except OSError:  # it has ended, or this is another system, or a kernel that lists no children
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
    """Give the children of all threads of a process."""
    threads = f"/proc/{pid}/task"
    for thread in os.listdir(threads):  # noqa: PTH208 - paths of pathlib take as long as the files
        yield from map(int, read_at_once(f"{threads}/{thread}/children").split())
