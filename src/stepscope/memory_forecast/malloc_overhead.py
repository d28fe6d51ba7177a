"""What a process takes beyond its tensors: the allocator's holes, a library's scratch memory.

A few small steps are tried for real, and what the process grew by beyond their tensors is the
calibration. A larger batch leaves larger holes, but not in proportion: the more a step keeps, the
more of it is in blocks that are mapped one by one and leave none. What fits the CNNs of the zoo at
batch 8 to 128 (glibc, bench/memory_forecast.py) grows with the square root.

On a device the allocator's rules are known, and what they reserve is counted at any batch
(`memory_forecast.cuda_allocator`). The calibration is then what was reserved beyond that: scratch
memory of the libraries, which is taken to be the same at a larger batch.
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


def device_slack_bytes(excess_bytes: int, reserved_bytes: int, tensors_bytes: int) -> int:
    """Return what a device's allocator holds beyond the tensors of a step.

    `excess_bytes` is by how much more was reserved in the trial than the rules say for it;
    `reserved_bytes` is what they say for this step.
    """
    return max(0, reserved_bytes + excess_bytes - tensors_bytes)
