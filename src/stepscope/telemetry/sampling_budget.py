"""Limits on the CPU time of sampling, which shares the cores with the training."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic, process_time

MOST_SHARE = 0.001  # of one core, for each kind of reading


def pause_after_s(
    cost_s: float, shortest_and_longest_s: tuple[float, float], most_share: float = MOST_SHARE
) -> float:
    """Return the pause after a reading that took `cost_s` of CPU time."""
    shortest_s, longest_s = shortest_and_longest_s
    return min(longest_s, max(shortest_s, cost_s / most_share))


@dataclass(frozen=True)
class CpuShare:
    """The share of one core that this process has used since the object was created."""

    _began_s: float = field(default_factory=monotonic)
    _used_s: float = field(default_factory=process_time)

    def share(self) -> float:
        """Return the share up to now."""
        return (process_time() - self._used_s) / (monotonic() - self._began_s)
