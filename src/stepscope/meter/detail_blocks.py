"""Blocks of steps without detail, from which the cost of the instrument is determined.

The blocks are short and begin at random steps, so that they do not coincide with periodic work of
the training. Only long runs have them: a short one has no steps to spare.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

FIRST_AFTER_STEPS = 2000
BLOCK_STEPS = 20
BLOCK_EVERY_STEPS = (200, 600)


@dataclass(slots=True)
class OffBlocks:
    """Decide when the detail is switched off and on again."""

    off: bool = False
    switch_at: int = FIRST_AFTER_STEPS
    # Not the module's functions: a training may depend on their state.
    _random: random.Random = field(default_factory=random.Random)

    def switch(self, steps: int) -> bool:
        """Switch if it is due after `steps` steps; return whether it was."""
        if steps < self.switch_at:
            return False
        self.off = not self.off
        self.switch_at = steps + (
            BLOCK_STEPS if self.off else self._random.randint(*BLOCK_EVERY_STEPS)
        )
        return True
