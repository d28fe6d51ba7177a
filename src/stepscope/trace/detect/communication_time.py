"""Exposed communication time: the part of a backward pass that only waits for the allreduce."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from stepscope.meter.clock import seconds


@dataclass(slots=True)
class CommunicationTime:
    """The end and the communication time of each backward pass not yet assigned to a step."""

    _passes: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, end_ns: int, communication_ns: int) -> None:
        """Add a backward pass. Passes must be added in the order in which they end."""
        self._passes.append((end_ns, communication_ns))

    def between(self, begin_ns: int, end_ns: int) -> float | None:
        """Return the communication seconds of a step, or None if it had none.

        Steps must be asked for in their order.
        """
        total_ns = None
        while self._passes and self._passes[0][0] <= end_ns:
            ended_ns, communication_ns = self._passes.popleft()
            if ended_ns >= begin_ns:
                total_ns = (total_ns or 0) + communication_ns
        return None if total_ns is None else seconds(total_ns)

    def by_step(self, bounds_ns: Sequence[int]) -> list[float | None]:
        """Return the same for consecutive steps: each lasts until the next one begins."""
        if not self._passes:
            return [None] * (len(bounds_ns) - 1)
        return [self.between(begin_ns, end_ns) for begin_ns, end_ns in pairwise(bounds_ns)]
