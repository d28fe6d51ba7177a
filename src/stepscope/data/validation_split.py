"""Choose the training samples to hold out for validation.

The choice has a fixed seed. It does not depend on the seed, order, source or pipeline of the run,
so the validation accuracies of runs are measured on the same samples.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.data.sample_order import chance
from stepscope.errors import RequestError

_SEED = 0x5EED_0F_5EA7

Mask = npt.NDArray[np.bool_]


def hold_out(samples: int, validation: int) -> Mask | None:
    """Return a mask of the `validation` samples to hold out; None if there are none.

    Raises:
        RequestError: nothing would be left to train on.
    """
    if not validation:
        return None
    if not 0 < validation < samples:
        raise RequestError(
            f"validation: wanted fewer samples than the {samples:,} to train on, found "
            f"{validation:,}. Hold out fewer, or take more --samples."
        )
    drawn = chance(_SEED, 0, np.arange(samples, dtype=np.int64))
    held = np.zeros(samples, dtype=np.bool_)
    held[np.argsort(drawn, kind="stable")[:validation]] = True
    return held
