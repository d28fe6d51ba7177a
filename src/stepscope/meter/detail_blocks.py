"""When to measure with the detail off: what the instrument costs is the difference.

Short blocks of steps at random moments, lest they fall in with anything that a training does every
so many steps. Only in long runs: a short one has no steps to spare.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

FIRST_AFTER_STEPS = 2000
BLOCK_STEPS = 20
BLOCK_EVERY_STEPS = (200, 600)


@dataclass(slots=True)
class OffBlocks:
    """Say when the detail is to be switched off, and on again."""

    off: bool = False
    switch_at: int = FIRST_AFTER_STEPS
    # Not the module's functions: a training may count on their numbers.
    _random: random.Random = field(default_factory=random.Random)

    def switch(self, steps: int) -> bool:
        """Switch if it is time, after so many steps, and say whether that was done."""
        if steps < self.switch_at:
            return False
        self.off = not self.off
        self.switch_at = steps + (
            BLOCK_STEPS if self.off else self._random.randint(*BLOCK_EVERY_STEPS)
        )
        return True
