"""The order of samples, their random bits, and which of them are held out for validation.

All are functions of seed, epoch and index, without state: they do not depend on the number of
workers, the pipeline, or how often the run was resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from stepscope.errors import RequestError

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

BLOCK = 1000  # samples that `block` keeps together
# The constants of splitmix64 (Steele, Lea, Flood 2014). GOLDEN is the odd number nearest to 2^64
# divided by the golden ratio.
GOLDEN = 0x9E37_79B9_7F4A_7C15

_HOLD_OUT_SEED = 0x5EED_0F_5EA7


def mix(words: Words) -> Words:
    """Hash words in place with splitmix64, and return them."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58_476D_1CE4_E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D0_49BB_1331_11EB)
    words ^= words >> np.uint64(31)
    return words


@dataclass(frozen=True)
class BatchKey:
    """Everything that determines a batch; held-out samples are not augmented."""

    epoch: int
    indices: Indices
    augment: bool = True


@dataclass
class EpochOrder:
    """The batches of one epoch as `BatchKey`s; set `epoch` and `skip` before it starts.

    `chosen` masks the samples that take part. Ranks share each batch; a rank whose part is empty
    gets one sample, so that it has something to compute.
    """

    samples: int
    batch_size: int
    seed: int
    shuffle: Literal["full", "block", "none"]
    epoch: int = 0
    skip: int = 0
    chosen: Mask | None = None
    augment: bool = True
    rank: int = 0
    world_size: int = 1

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size) - self.skip

    def __iter__(self) -> Iterator[BatchKey]:
        samples = self.samples if self.chosen is None else len(self.chosen)
        order = sample_order(samples, self.seed, self.epoch, self.shuffle)
        if self.chosen is not None:
            order = order[self.chosen[order]]
        for start in range(self.skip * self.batch_size, self.samples, self.batch_size):
            end = min(start + self.batch_size, self.samples)
            first, last = share_of(end - start, self.rank, self.world_size)
            if first == last:
                first, last = 0, 1
            yield BatchKey(self.epoch, order[start + first : start + last], self.augment)


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


def share_of(samples: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the start and end of a rank's part of a batch; the first ranks take the remainder."""
    each, over = divmod(samples, world_size)
    first = rank * each + min(rank, over)
    return first, first + each + (rank < over)


def random_bits(seed: int, epoch: int, indices: Indices) -> Words:
    """Return 64 random bits for each sample of an epoch."""
    golden = np.uint64(GOLDEN)
    key = mix(np.array([seed], dtype=np.uint64) + golden)
    key = mix(key ^ np.array([epoch], dtype=np.uint64) * golden)
    return mix(indices.astype(np.uint64) * golden ^ key)


def hold_out(samples: int, validation: int) -> Mask | None:
    """Return a mask of the `validation` samples to hold out, the same in every run, or None."""
    if not validation:
        return None
    if not 0 < validation < samples:
        raise RequestError(
            f"validation: wanted fewer than the {samples:,} training samples, found "
            f"{validation:,}. Hold out fewer, or raise --samples."
        )
    drawn = random_bits(_HOLD_OUT_SEED, 0, np.arange(samples, dtype=np.int64))
    held = np.zeros(samples, dtype=np.bool_)
    held[np.argsort(drawn, kind="stable")[:validation]] = True
    return held
