"""One check of `stepscope doctor`: what was found, why it matters, and advice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stepscope.hardware.procfs import Reading

Status = Literal["ok", "warning", "absent"]


@dataclass(frozen=True)
class Check:
    """The result of one check; for an absent reading, `found` is the reason."""

    name: str
    status: Status
    found: str
    why: str
    advice: str | None = None


def absent(name: str, reason: str | None, why: str, advice: str | None = None) -> Check:
    """Return the check of a reading that this machine does not have, with the reason."""
    return Check(name, "absent", reason or "this machine does not tell", why, advice)


def judged(
    name: str,
    reading: Reading[str],
    why: str,
    judge: Callable[[str], str | None] = lambda _: None,
) -> Check:
    """Return the check of a reading; `judge` returns advice if the value distorts measurements."""
    if reading.value is None:
        return absent(name, reading.reason, why)
    advice = judge(reading.value)
    return Check(name, "ok" if advice is None else "warning", reading.value, why, advice)
