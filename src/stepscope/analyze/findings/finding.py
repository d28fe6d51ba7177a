"""A finding: a sentence that the numbers of a run carry, with those numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """What was found, what shows it, and the command that would check or mend it.

    `weight` ranks: the share of the run's time that it is about, or how much of every figure it
    puts in doubt.
    """

    name: str
    text: str
    evidence: tuple[str, ...]
    command: str | None
    weight: float

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)
