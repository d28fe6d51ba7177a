"""Telling who acts from who tests.

In a game, or for a robot, a network is called with one sample to find out what to learn next, after
every update. Once such a call may be a test.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Acting:
    """After which update the network was last called with one sample."""

    _after: int = -1
    _acts: bool = False

    def is_usual(self, updates: int) -> bool:
        """Take such a call, after so many updates; say whether one came before the last too."""
        if self._after < updates:
            self._acts = self._after == updates - 1
            self._after = updates
        return self._acts
