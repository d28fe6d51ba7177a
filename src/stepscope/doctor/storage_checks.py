"""Checks of storage: the medium of the data, its speed, and whether it can be read cold."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.doctor.check import absent, checked
from stepscope.hardware.disk import medium_under, read_some
from stepscope.hardware.page_cache import DROP_CACHES
from stepscope.records.types import MachineCheck
from stepscope.units import format_bytes, format_count

_SLOW = ("HDD", "SD card", "eMMC", "network")


def check_storage(root: Path, data_dir: Path) -> list[MachineCheck]:
    """Return the checks of the storage."""
    return [_medium(root, data_dir), _read_test(data_dir), _page_cache()]


def _medium(root: Path, data_dir: Path) -> MachineCheck:
    why = "Slow storage can be the bottleneck of training."
    found = medium_under(data_dir, root)
    if found.value is None:
        return absent("storage", found.reason, why)
    medium = found.value
    device = f", {medium.device}" if medium.device else ""
    over_usb = " over USB" if medium.over_usb else ""
    where = f"{data_dir} is on: {medium.kind}{over_usb} ({medium.file_system}{device})"
    advice = None
    if medium.kind == "memory":
        advice = "The data is in memory: nothing is read from a disk."
    elif medium.kind in _SLOW:
        advice = "Check whether training waits for it: stepscope bottleneck"
    return checked("storage", where, why, advice)


def _read_test(data_dir: Path) -> MachineCheck:
    why = "No loader is faster than the storage."
    test = read_some(data_dir)
    if test.value is None:
        return absent(
            "read_test", test.reason, why, "Name the folder of the data with --data-dir DIR."
        )
    done = test.value
    state = "possibly cached" if done.warm_because else "evicted first"
    found = (
        f"{format_bytes(done.bytes_per_s)}/s, {done.files / done.seconds:,.0f} files/s "
        f"({format_bytes(done.bytes)}, {format_count(done.files, 'file')}, {state})"
    )
    advice = f"The files may have been cached: {done.warm_because}." if done.warm_because else None
    return checked("read_test", found, why, advice)


def _page_cache() -> MachineCheck:
    why = "First epochs are only comparable if no file is cached."
    if os.access(DROP_CACHES, os.W_OK):
        return checked("page_cache", "can be dropped completely", why)
    if not DROP_CACHES.exists():
        return absent("page_cache", f"{DROP_CACHES} does not exist", why)
    advice = "Run as root to drop all of it."
    found = "only your own files can be evicted"
    return checked("page_cache", found, why, advice)
