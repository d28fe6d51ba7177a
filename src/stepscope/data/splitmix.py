"""Random bits by hashing rather than by drawing: splitmix64 (Steele, Lea, Flood 2014).

A hash of a number has no state, so what comes out depends on the number alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

# The odd number nearest to 2^64 over the golden ratio: multiples of it are far apart.
GOLDEN = 0x9E37_79B9_7F4A_7C15


def mix(words: Words) -> Words:
    """Scramble words, in place, and return them."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58_476D_1CE4_E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D0_49BB_1331_11EB)
    words ^= words >> np.uint64(31)
    return words
