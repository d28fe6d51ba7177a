"""What a process takes beyond its tensors: the allocator's holes, a library's scratch memory.

A few small steps are tried for real, and what the process grew by beyond their tensors is the
calibration. A larger batch leaves larger holes, but not in proportion: the more a step keeps, the
more of it is in blocks that are mapped one by one and leave none. What fits the CNNs of the zoo at
batch 8 to 128 (glibc, bench/memory_forecast.py) grows with the square root.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MIB = 2**20
_HOLES_MIB = 7.0  # for one MiB kept beyond what was tried; twice as much for four


@dataclass(frozen=True)
class AllocatorTrial:
    """How much more than its tensors a process took, and for how many bytes of activations."""

    kept_bytes: int
    excess_bytes: int


def slack_bytes(trial: AllocatorTrial, kept_bytes: int) -> int:
    """Return what comes on top of the tensors of a step that keeps so much."""
    tried = max(0, trial.excess_bytes)
    if kept_bytes <= trial.kept_bytes:
        return round(tried * kept_bytes / max(1, trial.kept_bytes))
    further_mib = (kept_bytes - trial.kept_bytes) / _MIB
    return tried + round(_HOLES_MIB * math.sqrt(further_mib) * _MIB)
