"""The storage below a folder: its medium, its read speed, and caches in front of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepscope.hardware.jetson import is_virtual
from stepscope.hardware.page_cache import advise_out
from stepscope.hardware.procfs import Reading, is_there, matching, read_text

Kind = Literal["NVMe SSD", "SSD", "HDD", "SD card", "eMMC", "network", "memory", "virtual disk"]

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "gluster", "lustre", "virtiofs", "afs")
_LOCAL = "fuseblk"  # a disk through a program such as ntfs-3g
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Medium:
    """The storage below a folder."""

    kind: Kind
    file_system: str
    device: str | None = None
    over_usb: bool = False


@dataclass(frozen=True)
class ReadTest:
    """The speed of reading a few files once, in one stream.

    `warm_because` is the reason why they may have been cached; None if the system was advised to
    drop them. It keeps pages that are dirty or mapped.
    """

    files: int
    bytes: int
    seconds: float
    warm_because: str | None

    @property
    def bytes_per_s(self) -> float:
        """Return the mean over the whole test."""
        return self.bytes / self.seconds


def medium_under(folder: Path, root: Path) -> Reading[Medium]:
    """Return the storage below a folder, or below its nearest existing ancestor."""
    real = Path(os.path.realpath(folder))  # `Path.resolve` fails on circular links
    there = next(each for each in (real, *real.parents) if is_there(each))
    mount = _mount_of(there, root)
    if mount is None:
        return Reading(None, f"{root / 'proc/self/mountinfo'} does not list the mount of {there}")
    number, file_system, source = mount
    if file_system.startswith(_IN_MEMORY):
        return Reading(Medium("memory", file_system))
    if file_system.startswith(_NETWORK) and file_system != _LOCAL:
        return Reading(Medium("network", file_system, source))
    return _of_disk(number, source, file_system, root)


def read_some(
    folder: Path, *, at_most_bytes: int = 64 << 20, at_most_s: float = 2.0, at_most_files: int = 500
) -> Reading[ReadTest]:
    """Read files below a folder within limits of size and time, after evicting them."""
    try:
        files = _some_files(folder, at_most_bytes, at_most_files)
        if not files:
            return Reading(None, f"no file to read below {folder}")
        warm_because = advise_out(files)
        begun = time.perf_counter()
        read_bytes = count = 0
        for file in files:
            read_bytes += _read(file, at_most_bytes - read_bytes, begun + at_most_s)
            count += 1
            if read_bytes >= at_most_bytes or time.perf_counter() - begun > at_most_s:
                break
        seconds = time.perf_counter() - begun
    except OSError as error:
        return Reading(None, f"{error.filename or folder} cannot be read: {error.strerror}")
    if not read_bytes:
        return Reading(None, f"every file below {folder} is empty")
    return Reading(ReadTest(count, read_bytes, seconds, warm_because))


def _some_files(folder: Path, at_most_bytes: int, at_most_files: int) -> list[Path]:
    """List files in the system's order until there is enough to read."""
    found: list[Path] = []
    size_bytes = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            # `Path.is_file` fails in a folder that can be listed but not entered.
            if name.startswith(".") or not os.path.isfile(file):  # noqa: PTH113
                continue
            found.append(file)
            size_bytes += file.stat().st_size
            if len(found) >= at_most_files or size_bytes >= at_most_bytes:
                return found
    return found


def _read(file: Path, at_most_bytes: int, until: float) -> int:
    """Read a file up to a size or a time, and at least one block."""
    read_bytes = 0
    with file.open("rb", buffering=0) as opened:
        while read_bytes < at_most_bytes:
            block = opened.read(min(_BLOCK_BYTES, at_most_bytes - read_bytes))
            if not block:
                break
            read_bytes += len(block)
            if time.perf_counter() > until:
                break
    return read_bytes


def _mount_of(path: Path, root: Path) -> tuple[str, str, str] | None:
    """Return device number, file system and source of the mount of a path."""
    best, found = -1, None
    for line in (read_text(root / "proc/self/mountinfo").value or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kinds) < 2:
            continue
        mount = Path(fields[4].replace("\\040", " "))
        depth = len(mount.parts)
        # Of two mounts at the same path, the last one is on top.
        if depth >= best and (path == mount or mount in path.parents):
            best, found = depth, (fields[2], kinds[0], kinds[1])
    return found


def _of_disk(number: str, source: str, file_system: str, root: Path) -> Reading[Medium]:
    """Return the medium of a block device: that of a partition's disk or of a mapped device."""
    entry = root / "sys/dev/block" / number
    if not is_there(entry) and source.startswith("/dev/"):
        # btrfs, which may have several disks, reports numbers that are no device's.
        device = Path(os.path.realpath(root / source.lstrip("/")))
        entry = root / "sys/class/block" / device.name
    if not is_there(entry):
        return Reading(None, f"{file_system} hides its disk ({entry} does not exist)")
    disk = _disk_below(entry.resolve())
    name = disk.name
    kind: Kind
    if name.startswith("nvme"):
        kind = "NVMe SSD"
    elif name.startswith("mmcblk"):
        kind = "SD card" if read_text(disk / "device/type").value == "SD" else "eMMC"
    elif name.startswith(("vd", "xvd")):
        kind = "virtual disk"
    else:
        rotates = read_text(disk / "queue/rotational")
        if rotates.value is None:
            return Reading(None, rotates.reason)
        kind = "HDD" if rotates.value == "1" else "SSD"
    over_usb = any(part.startswith("usb") for part in disk.parts)
    return Reading(Medium(kind, file_system, name, over_usb))


def _disk_below(device: Path) -> Path:
    if is_there(device / "partition"):
        return _disk_below(device.parent)
    slaves = matching(device / "slaves", "*")
    return _disk_below(slaves[0].resolve()) if slaves else device


def caches_beyond_reach(path: Path, cold_share: float | None) -> list[str]:
    """List the caches between a training and its storage that could not be emptied."""
    found = []
    if cold_share is not None and cold_share < 1:
        found.append(f"the page cache: {1 - cold_share:.1%} of the data stayed in it")
    medium = medium_under(path, Path("/")).value
    if medium is not None and medium.kind == "memory":
        found.append(f"all of it: the data is in memory ({medium.file_system})")
    elif medium is not None and medium.kind == "network":
        found.append(f"the file server's cache ({medium.file_system})")
    else:
        found.append("the drive's cache")
    if is_virtual(Path("/")):
        found.append("the hypervisor's cache: this is a virtual machine")
    return found
