"""Checks of storage: the medium of the data, its speed, and whether it can be read cold."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.doctor.check import absent, checked
from stepscope.hardware.disk import medium_under, read_some
from stepscope.hardware.page_cache import DROP_CACHES
from stepscope.records.types import MachineCheck
from stepscope.units import format_bytes, format_duration

_SLOW = ("HDD", "SD card", "eMMC", "network")


def check_storage(root: Path, data_dir: Path) -> list[MachineCheck]:
    """Return the checks of the storage."""
    return [_medium(root, data_dir), _read_test(data_dir), _page_cache()]


def _medium(root: Path, data_dir: Path) -> MachineCheck:
    why = "the same training is bound by storage on one medium and by compute on another"
    found = medium_under(data_dir, root)
    if found.value is None:
        return absent("storage", found.reason, why)
    medium = found.value
    if medium.kind is None:
        return absent("storage", f"{medium.reason}", why)
    device = f", {medium.device}" if medium.device else ""
    over_usb = " over USB" if medium.over_usb else ""
    said = f"{data_dir} lies on: {medium.kind}{over_usb} ({medium.file_system}{device})"
    advice = None
    if medium.kind == "memory":
        advice = "Nothing is read from a disk here."
    elif medium.kind in _SLOW:
        advice = "See with `stepscope bottleneck` whether a training waits for it."
    return checked("storage", said, why, advice)


def _read_test(data_dir: Path) -> MachineCheck:
    why = "what the medium gives is the most that a loader can get"
    test = read_some(data_dir)
    if test.value is None:
        return absent("read_test", test.reason, why, "Name the data's folder with --data-dir DIR.")
    done = test.value
    state = "perhaps from memory" if done.warm_because else "advised out of memory before"
    found = (
        f"{format_bytes(done.bytes_per_s)}/s, {done.files / done.seconds:,.0f} files/s: "
        f"{format_bytes(done.bytes)} in {done.files:,} files took "
        f"{format_duration(done.seconds)}, {state}"
    )
    advice = f"Not cold: {done.warm_because}." if done.warm_because else None
    return checked("read_test", found, why, advice)


def _page_cache() -> MachineCheck:
    why = "a first epoch is only comparable when no file is in memory from before"
    if os.access(DROP_CACHES, os.W_OK):
        return checked("page_cache", f"the whole of it may be dropped ({DROP_CACHES})", why)
    if not DROP_CACHES.exists():
        return absent("page_cache", f"there is no {DROP_CACHES}", why)
    advice = "Run as root to drop all of it; --page-cache cold then also reaches other files."
    found = "only the pages of one's own files can be advised out of it"
    return checked("page_cache", found, why, advice)
