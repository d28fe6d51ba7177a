"""Time in which steps did nothing but exchange gradients, until it is known which step's it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from stepscope.meter.clock import seconds


@dataclass(slots=True)
class CommunicationTime:
    """When each backward pass ended, and how long it had only exchanged; until a step takes it."""

    _passes: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, end_ns: int, communication_ns: int) -> None:
        """Take a backward pass, after all that ended before it."""
        self._passes.append((end_ns, communication_ns))

    def between(self, begin_ns: int, end_ns: int) -> float | None:
        """Return the seconds of exchange in a step; None where it had none. Steps come in order."""
        total_ns = None
        while self._passes and self._passes[0][0] <= end_ns:
            ended_ns, communication_ns = self._passes.popleft()
            if ended_ns >= begin_ns:
                total_ns = (total_ns or 0) + communication_ns
        return None if total_ns is None else seconds(total_ns)

    def by_step(self, bounds_ns: Sequence[int]) -> list[float | None]:
        """Return the same for steps that follow each other: each lasts until the next begins."""
        if not self._passes:
            return [None] * (len(bounds_ns) - 1)
        return [self.between(begin_ns, end_ns) for begin_ns, end_ns in pairwise(bounds_ns)]
