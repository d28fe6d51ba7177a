"""Readings of a process's memory, put together phase by phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.stats import median

# Of two phases that come so near each other, the first one has made the process grow: the kernel
# keeps the counters of each core for a while before it adds them up.
_SAME_BYTES = 2**19


def by_phase(readings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the readings of a phase together: most in the first step and later, medians at its end.

    `change_bytes` is by how much what the program holds grew in the phase, in the middle of the
    later steps; what the allocator keeps is not in it.
    """
    in_use = [reading["in_use_bytes"] for reading in readings]
    changes = [_difference(*pair) for pair in zip(in_use, [None, *in_use], strict=False)]
    found = []
    for name in dict.fromkeys(reading["phase"] for reading in readings):
        numbers = [number for number, each in enumerate(readings) if each["phase"] == name]
        later = [number for number in numbers if readings[number]["step"] != 1] or numbers
        first = [number for number in numbers if number not in later]
        found.append(
            {
                "phase": name,
                "times": len(numbers),
                "first_step_peak_bytes": _most(readings, first, "peak_bytes"),
                "peak_bytes": _most(readings, later, "peak_bytes"),
                "end_bytes": _middle([readings[number]["end_bytes"] for number in later]),
                "in_use_bytes": _middle([readings[number]["in_use_bytes"] for number in later]),
                "kept_bytes": _middle([readings[number]["kept_bytes"] for number in later]),
                "change_bytes": _middle([changes[number] for number in later]),
            }
        )
    return found


def peak_phase(readings: Sequence[dict[str, Any]]) -> str | None:
    """Name the phase in which the process first was about as large as it ever was."""
    known = [reading for reading in readings if reading["peak_bytes"] is not None]
    if not known:
        return None
    most = max(reading["peak_bytes"] for reading in known)
    return next(
        str(reading["phase"]) for reading in known if reading["peak_bytes"] >= most - _SAME_BYTES
    )


def _most(readings: Sequence[dict[str, Any]], numbers: list[int], name: str) -> int | None:
    known = [readings[number][name] for number in numbers if readings[number][name] is not None]
    return max(known, default=None)


def _middle(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
