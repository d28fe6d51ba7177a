"""The files in which Linux tells of itself; empty elsewhere, or where they cannot be read."""

from __future__ import annotations

import sys
from pathlib import Path


def lines_of(file: Path) -> list[str]:
    """Read the lines of such a file; none where there is no such thing."""
    if sys.platform != "linux":
        return []
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def first_line_of(file: Path) -> str | None:
    """Read its first line."""
    return next(iter(lines_of(file)), None)


def status_bytes(pid: int | str) -> dict[str, int]:
    """Read the sizes in a process's `status`, by name, in bytes."""
    sizes = {}
    for line in lines_of(Path(f"/proc/{pid}/status")):
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            sizes[name] = int(value.split()[0]) * 1024
    return sizes
