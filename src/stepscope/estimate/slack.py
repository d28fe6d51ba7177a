"""What a process takes beyond its tensors: the allocator's holes, a library's scratch memory.

A few small steps are tried for real, and what the process grew by beyond their tensors is the
calibration. A larger batch leaves larger holes: of every further byte of activations, the allocator
keeps about a quarter besides (glibc, nine CNNs, batch 8 to 128: bench/memory_forecast.py).
"""

from __future__ import annotations

from dataclasses import dataclass

FURTHER_SHARE = 0.25


@dataclass(frozen=True)
class AllocatorTrial:
    """How much more than its tensors a process took, and for how many bytes of activations."""

    kept_bytes: int
    excess_bytes: int


def slack_bytes(trial: AllocatorTrial, kept_bytes: int) -> int:
    """Return what comes on top of the tensors of a step that keeps so much."""
    return max(0, round(trial.excess_bytes + FURTHER_SHARE * (kept_bytes - trial.kept_bytes)))
