"""What a network may take at most on an accelerator: `energy_mj=0.5,cycles=1e5`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.errors import RequestError, nearest

FIGURES = ("energy_mj", "cycles", "peak_activation_bytes")


@dataclass(frozen=True)
class SearchBudget:
    """The most of each figure that is limited."""

    limits: Mapping[str, float]

    def excess(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Return by which share each limited figure is above its limit; 0 or less keeps it."""
        return {name: figures[name] / limit - 1 for name, limit in self.limits.items()}

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Say whether every limit is kept."""
        return all(share <= 0 for share in self.excess(figures).values())

    def __str__(self) -> str:
        return ",".join(f"{name}={limit:g}" for name, limit in self.limits.items())


def read_budget(text: str) -> SearchBudget:
    """Parse limits given by the user.

    Raises:
        RequestError: a name is unknown or stands twice, or a limit is no number above 0.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise RequestError(
                f"budget: wanted NAME=NUMBER, like energy_mj=0.5,cycles=1e5, found {part!r}."
            )
        if name not in FIGURES:
            raise RequestError(f"budget: there is no figure {name!r}.{nearest(name, FIGURES)}")
        if name in limits:
            raise RequestError(f"budget: {name} stands twice. Give each limit once.")
        limits[name] = _limit(name, value)
    return SearchBudget(limits)


def _limit(name: str, text: str) -> float:
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise RequestError(f"budget: {name} wants a number above 0, found {text.strip()!r}.")
    return limit
