"""One thing that doctor looks at: what was found, why it matters, what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stepscope.hardware.procfs import PseudoFileReading

Status = Literal["ok", "warning", "absent"]


@dataclass(frozen=True)
class Check:
    """What was found of one thing; where it is absent, `found` is the reason."""

    name: str
    status: Status
    found: str
    why: str
    advice: str | None = None


def absent(name: str, reason: str | None, why: str, advice: str | None = None) -> Check:
    """Say that this machine does not tell something, and the reason."""
    return Check(name, "absent", reason or "this machine does not tell", why, advice)


def judged(
    name: str,
    reading: PseudoFileReading[str],
    why: str,
    judge: Callable[[str], str | None] = lambda _: None,
) -> Check:
    """Make a check of a reading: `judge` gives advice where a value makes measuring unfair."""
    if reading.value is None:
        return absent(name, reading.reason, why)
    advice = judge(reading.value)
    return Check(name, "ok" if advice is None else "warning", reading.value, why, advice)
