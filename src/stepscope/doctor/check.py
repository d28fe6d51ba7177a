"""One check of `stepscope doctor`: what was found, why it matters, and advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepscope.hardware.procfs import Reading

APPLY = "As root: stepscope doctor --apply, or run --prepare."


@dataclass(frozen=True)
class Check:
    """The result of one check; for an absent reading, `found` is the reason."""

    name: str
    status: Literal["ok", "warning", "absent"]
    found: str
    why: str
    advice: str | None = None


def checked(name: str, found: str, why: str, advice: str | None = None) -> Check:
    """Return the check of a reading: ok, or with advice a warning."""
    return Check(name, "warning" if advice else "ok", found, why, advice)


def absent(name: str, reason: str | None, why: str, advice: str | None = None) -> Check:
    """Return the check of a reading that this machine does not have, with the reason."""
    return Check(name, "absent", reason or "this machine does not tell", why, advice)


def compared(
    name: str, reading: Reading[str], why: str, wanted: str | None = None, advice: str = APPLY
) -> Check:
    """Return the check of a reading; another value than the `wanted` one distorts measurements."""
    if reading.value is None:
        return absent(name, reading.reason, why)
    return checked(name, reading.value, why, None if wanted in (None, reading.value) else advice)
