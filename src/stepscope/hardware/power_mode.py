"""A Jetson's power modes, as `nvpmodel` keeps them: those it knows and the one that is set.

`/etc/nvpmodel.conf` has the modes, `/var/lib/nvpmodel/status` the number of the one that was set
last, and of none before anybody set one: then it is the default of the first file.
"""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.hardware.board import board, is_jetson
from stepscope.hardware.pseudo_files import Reading, read_text

MODES = "etc/nvpmodel.conf"
STATUS = "var/lib/nvpmodel/status"

_MODE = re.compile(r"^<\s*POWER_MODEL\s+ID=([0-9]{1,4})\s+NAME=([\w.:+/-]{1,64})\s*>", re.MULTILINE)
_DEFAULT = re.compile(r"^<\s*PM_CONFIG\s+DEFAULT=([0-9]{1,4})\s*>", re.MULTILINE)
_STATUS = re.compile(r"pmode:([0-9]{1,6})\b")
_WATTS = re.compile(r"([0-9]+)W")


def power_modes(root: Path) -> dict[int, str]:
    """Return the names of the modes by number; none where this is no Jetson."""
    return {int(number): name for number, name in _MODE.findall(_conf(root))}


def power_mode(root: Path) -> Reading[str]:
    """Name the power mode that is set."""
    number = mode_number(root)
    if number.value is None:
        return Reading(None, number.reason)
    return Reading(power_modes(root).get(number.value, f"mode {number.value}"))


def mode_number(root: Path) -> Reading[int]:
    """Return the number of the power mode that is set."""
    status = read_text(root / STATUS)
    if status.value is not None:
        found = _STATUS.search(status.value)
        if found is None:
            wanted = "wanted something like pmode:0000"
            return Reading(None, f"{root / STATUS}: {wanted}, found {status.value[:40]!r}")
        return Reading(int(found[1]))
    default = _DEFAULT.search(_conf(root))
    if default is not None:
        return Reading(int(default[1]))
    if not is_jetson(root):
        return Reading(None, "power modes are a Jetson's (nvpmodel), and this is none")
    return Reading(None, status.reason)


def number_of(mode: str, root: Path) -> int | None:
    """Find a power mode by its name or number; None where this machine has no such mode."""
    modes = power_modes(root)
    by_word = {str(number): number for number in modes}
    by_word |= {name.lower(): number for number, name in modes.items()}
    return by_word.get(mode.lower())


def protocol_mode(root: Path) -> str | None:
    """Name the mode of the edge protocol: on a Xavier NX 15 W on all cores, else the largest."""
    names = list(power_modes(root).values())
    if "Xavier NX" in (board(root).value or ""):
        names = [name for name in names if "15W" in name] or names
    return max(names, key=_size, default=None)


def _size(name: str) -> tuple[bool, int, str]:
    """Order modes by what they allow: without a limit, then by watts, then by cores as named."""
    watts = _WATTS.search(name)
    return name.startswith("MAXN"), int(watts[1]) if watts else 0, name


def _conf(root: Path) -> str:
    return read_text(root / MODES).value or ""
