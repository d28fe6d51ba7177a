"""The most that a network may cost on an accelerator: `energy_mj=0.5,cycles=1e5`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.errors import RequestError, nearest

FIGURES = ("energy_mj", "cycles", "peak_activation_bytes")


@dataclass(frozen=True)
class SearchBudget:
    """The largest value of each limited figure."""

    limits: Mapping[str, float]

    def excess(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Return the share by which each figure exceeds its limit; at most 0 is within."""
        return {name: figures[name] / limit - 1 for name, limit in self.limits.items()}

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Return whether all figures are within their limits."""
        return all(share <= 0 for share in self.excess(figures).values())

    def __str__(self) -> str:
        return ",".join(f"{name}={limit:g}" for name, limit in self.limits.items())


def read_budget(text: str) -> SearchBudget:
    """Parse limits given by the user."""
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
            raise RequestError(f"budget: {name} is given twice. Give each limit once.")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = math.nan
        if not 0 < limits[name] < math.inf:
            raise RequestError(
                f"budget: wanted a number above 0 for {name}, found {value.strip()!r}."
            )
    return SearchBudget(limits)
