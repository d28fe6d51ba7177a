"""Loop nests by the thousand: how they are split over levels, and how often a tile comes again.

A tile is fetched again above a level as often as the product of the loops from the innermost
relevant one that is no single pass outward. What lies inside of that one is reuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]

# The dimensions that a tensor's tile depends on; over the others it is reused.
RELEVANT = {"weights": "CMRS", "inputs": "CPQRS", "outputs": "MPQ"}

# Loops of a level, the innermost first. More orders than these bring nothing: which tensor is
# reused depends on the innermost loops alone, and along P or Q an input's tiles overlap.
DRAM_ORDERS = ("PQCM", "QPCM", "MCPQ", "CMPQ")
BUFFER_ORDERS = ("PQCM", "MCPQ", "CMPQ")
# In the scratchpad P, Q, R and S are innermost.
SCRATCHPAD_ORDERS = ("PQRSCM", "RSPQCM", "RSPQMC")
ALL_ORDERS = 24 * 24 * 48  # of four loops, of four loops, of two around four


@lru_cache(maxsize=4096)
def splits(bound: int) -> npt.NDArray[np.int64]:
    """Return every way to split a bound over DRAM, buffer and scratchpad, one a row."""
    found = [
        (outer, middle, bound // outer // middle)
        for outer in _divisors(bound)
        for middle in _divisors(bound // outer)
    ]
    return np.array(found, dtype=np.int64)


@lru_cache(maxsize=4096)
def _divisors(bound: int) -> list[int]:
    small = [each for each in range(1, isqrt(bound) + 1) if bound % each == 0]
    return sorted({*small, *(bound // each for each in small)})


@dataclass(frozen=True)
class Reuse:
    """How often a tile is used before the next one; `passes` where no loop of the level ends it."""

    times: Floats
    passes: Truths

    def then(self, outer: Reuse) -> Reuse:
        """Go on with the loops of the next level outward."""
        times = self.times * np.where(self.passes, outer.times, 1.0)
        return Reuse(times, self.passes & outer.passes)


def reuse_of(tensor: str, order: Sequence[str], loops: Mapping[str, Floats]) -> Reuse:
    """Return the reuse of a tensor's tile in the loops of one level, the innermost first."""
    size = len(next(iter(loops.values())))
    times, passes = np.ones(size), np.ones(size, dtype=bool)
    for dimension in order:
        passed = loops[dimension]
        if dimension in RELEVANT[tensor]:
            passes = passes & (passed == 1)
        else:
            times = times * np.where(passes, passed, 1.0)
    return Reuse(times, passes)
