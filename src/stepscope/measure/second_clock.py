"""The other clock between two readings of it.

An epoch is checked by a clock pair of its own. That clock is read where an epoch begins or may end;
which of these moments it was is known only later, and between two readings it goes like the first.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SecondClock:
    """When both clocks were read last, on each."""

    _time_ns: int = 0
    _other_ns: int = 0

    def read(self, time_ns: int, other_ns: int) -> None:
        """Both clocks were read at one moment."""
        self._time_ns, self._other_ns = time_ns, other_ns

    def at(self, time_ns: int) -> int:
        """Return what it shows at a moment of the first clock."""
        return self._other_ns + time_ns - self._time_ns
