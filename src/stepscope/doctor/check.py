"""One check of `stepscope doctor`: what was found, why it matters, and advice."""

from __future__ import annotations

from typing import Literal

from stepscope.hardware.procfs import Reading
from stepscope.records.types import MachineCheck

APPLY = "As root: stepscope doctor --apply"


def checked(name: str, found: str, why: str, advice: str | None = None) -> MachineCheck:
    """Return the check of a reading: ok, or with advice a warning."""
    status: Literal["ok", "warning"] = "warning" if advice else "ok"
    return {"name": name, "status": status, "found": found, "why": why, "advice": advice}


def absent(name: str, reason: str | None, why: str, advice: str | None = None) -> MachineCheck:
    """Return the check of a reading that this machine does not have, with the reason."""
    found = reason or "not reported by this machine"
    return {"name": name, "status": "absent", "found": found, "why": why, "advice": advice}


def compared(
    name: str, reading: Reading[str], why: str, wanted: str | None = None, advice: str = APPLY
) -> MachineCheck:
    """Return the check of a reading; another value than the `wanted` one distorts measurements."""
    if reading.value is None:
        return absent(name, reading.reason, why)
    return checked(name, reading.value, why, None if wanted in (None, reading.value) else advice)
