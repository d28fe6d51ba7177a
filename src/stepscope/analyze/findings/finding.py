"""A finding: a conclusion and the measurements behind it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A conclusion, its evidence, and the command that would check or fix it.

    `weight` ranks findings: the share of the run's time that it concerns, or the share of the
    figures that it puts in doubt.
    """

    name: str
    text: str
    evidence: tuple[str, ...]
    command: str | None
    weight: float

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return asdict(self)
