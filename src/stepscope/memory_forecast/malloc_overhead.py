"""Memory beyond the tensors of a process: fragmentation and scratch memory of libraries.

A few small steps calibrate it: the growth of the process beyond their tensors. Fragmentation grows
with the batch, but not in proportion: the more a step keeps, the more of it is in separately mapped
blocks, which do not fragment. The square root fits the CNNs of the zoo at batch 8 to 128 (glibc,
bench/memory_forecast.py).

On a device the allocator is simulated for any batch (`memory_forecast.cuda_allocator`). The
calibration is then the reserved memory beyond the simulation: scratch memory of libraries, assumed
to be the same for a larger batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MIB = 2**20
_HOLES_MIB = 7.0  # for one MiB kept beyond the trial; twice as much for four


@dataclass(frozen=True)
class AllocatorTrial:
    """The memory of a process beyond its tensors, and the activations of that trial."""

    kept_bytes: int
    excess_bytes: int


def slack_bytes(trial: AllocatorTrial, kept_bytes: int) -> int:
    """Return the overhead of a step that keeps `kept_bytes` of activations."""
    tried = max(0, trial.excess_bytes)
    if kept_bytes <= trial.kept_bytes:
        return round(tried * kept_bytes / max(1, trial.kept_bytes))
    further_mib = (kept_bytes - trial.kept_bytes) / _MIB
    return tried + round(_HOLES_MIB * math.sqrt(further_mib) * _MIB)


def device_slack_bytes(excess_bytes: int, reserved_bytes: int, tensors_bytes: int) -> int:
    """Return the memory of a device's allocator beyond the tensors of a step.

    `excess_bytes` is the reserved memory of the trial beyond its simulation; `reserved_bytes` is
    the simulation of this step.
    """
    return max(0, reserved_bytes + excess_bytes - tensors_bytes)
