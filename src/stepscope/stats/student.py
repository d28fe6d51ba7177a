"""Student's t for whole degrees of freedom, where its distribution has a closed form.

With the angle a = atan(t / sqrt(n)) and c = cos(a), the chance of lying within ±t is a finite sum
(Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4):

    odd n:   2/pi * (a + sin(a) * (c + 2/3 c^3 + 2*4/(3*5) c^5 + ... up to c^(n-2)))
    even n:  sin(a) * (1 + 1/2 c^2 + 1*3/(2*4) c^4 + ... up to c^(n-2))
"""

from __future__ import annotations

import math
from functools import lru_cache

_HALVINGS = 60  # of an angle below pi/2: down to the last bit of a double
_MOST_DEGREES = 10_000  # beyond, the quantile no longer changes in the fourth digit


@lru_cache(maxsize=4096)
def t_quantile(degrees: int, confidence: float = 0.95) -> float:
    """Return the t that holds a share `confidence` of the distribution between -t and t."""
    if degrees < 1 or not 0 <= confidence < 1:
        raise ValueError(
            "wanted one degree of freedom or more and a confidence from 0 to below 1, "
            f"found {degrees} and {confidence}"
        )
    degrees = min(degrees, _MOST_DEGREES)
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _share_within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def _share_within(angle: float, degrees: int) -> float:
    odd = degrees % 2
    cosine = math.cos(angle)
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total
