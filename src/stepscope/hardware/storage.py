"""Where data lies: the file system under it, and the caches that nobody here can empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.hardware.pseudo_files import lines_of

_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "gluster", "lustre", "virtiofs", "afs")
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def file_system_of(path: Path) -> str | None:
    """Return the kind of file system that a path lies on; None where nobody says."""
    resolved = path.resolve()
    best, kind = -1, None
    for line in lines_of(Path("/proc/self/mounts")):
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = Path(fields[1].replace("\\040", " "))
        depth = len(mount.parts)
        if depth > best and (resolved == mount or mount in resolved.parents):
            best, kind = depth, fields[2]
    return kind


def is_virtual_machine() -> bool:
    """Say whether the CPU tells of a hypervisor below."""
    return any(
        " hypervisor" in line
        for line in lines_of(Path("/proc/cpuinfo"))
        if line.startswith("flags")
    )


def caches_beyond_reach(path: Path, cold: dict[str, Any] | None) -> list[str]:
    """List the caches between a training and its medium that could not be emptied."""
    found = []
    share = None if cold is None else cold.get("cold_share")
    if share is not None and share < 1:
        found.append(f"the page cache: {1 - share:.1%} of the data stayed in it")
    kind = file_system_of(path) or ""
    if kind.startswith(_IN_MEMORY):
        found.append(f"all of it: the data lies in memory ({kind})")
    elif kind.startswith(_NETWORK):
        found.append(f"the file server's ({kind})")
    else:
        found.append("the drive's own")
    if is_virtual_machine():
        found.append("the hypervisor's: this is a virtual machine")
    return found
