"""Which sample comes when, and what chance does to it: functions of seed, epoch and position.

There is no generator whose state could drift: the order of an epoch and the crop of a sample are
the same whatever the number of workers, the pipeline, or how often the run was resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

BLOCK = 1000

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchKey:
    """Everything that determines a batch: what a worker is told to make."""

    epoch: int
    indices: Indices


@dataclass
class EpochOrder:
    """The batches of one epoch, from any batch on. Iterating gives `BatchKey`s.

    A loader asks for an iterator each epoch; set `epoch` and `skip` before that.
    """

    samples: int
    batch_size: int
    seed: int
    shuffle: Literal["full", "block", "none"]
    epoch: int = 0
    skip: int = 0

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size) - self.skip

    def __iter__(self) -> Iterator[BatchKey]:
        order = sample_order(self.samples, self.seed, self.epoch, self.shuffle)
        for start in range(self.skip * self.batch_size, self.samples, self.batch_size):
            yield BatchKey(self.epoch, order[start : start + self.batch_size])


def sample_order(
    samples: int, seed: int, epoch: int, shuffle: Literal["full", "block", "none"]
) -> Indices:
    """Return the order of an epoch's samples."""
    if shuffle == "none":
        return np.arange(samples, dtype=np.int64)
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    if shuffle == "full":
        return random.permutation(np.arange(samples, dtype=np.int64))
    blocks = [np.arange(start, min(start + BLOCK, samples)) for start in range(0, samples, BLOCK)]
    order = random.permutation(len(blocks))
    return np.concatenate([random.permutation(blocks[block]) for block in order])


def chance(seed: int, epoch: int, indices: Indices) -> npt.NDArray[np.uint64]:
    """Return 64 random bits for each sample of an epoch, by hashing rather than by drawing.

    The hash is the finaliser of splitmix64 (Steele, Lea, Flood 2014), applied to the sample's
    index and then to that mixed with the epoch and the seed.
    """
    with np.errstate(over="ignore"):
        key = _mix(_mix(np.uint64(seed) + _GOLDEN) ^ np.uint64(epoch) * _GOLDEN)
        return _mix(indices.astype(np.uint64) * _GOLDEN ^ key)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(bits: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.uint64]:
    bits = np.asarray(bits, dtype=np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
