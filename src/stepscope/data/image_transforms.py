"""Crop, flip and normalise images.

Random numbers come from `sample_order.random_bits`, so that they do not depend on the worker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.data.dataset import Channels
from stepscope.data.sample_order import GOLDEN, Words, mix

PADDING = 4
_OFFSETS = 2 * PADDING + 1

# The usual training crop of ImageNet (arXiv:1409.4842): 8 % to 100 % of the area, aspect ratio 3:4
# to 4:3.
AREAS = (0.08, 1.0)
RATIOS = (3 / 4, 4 / 3)
TRIES = 10
# The usual evaluation crop: the centre 224 pixels after resizing the shorter side to 256.
MIDDLE = 224 / 256

DRAWS = 4 * TRIES + 1

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def scale_and_shift(mean: Channels, std: Channels) -> tuple[Floats, Floats]:
    """Return the factor and the summand of each channel that make (pixel / 255 - mean) / std."""
    scale = (1 / (255 * np.array(std))).astype(np.float32)
    return scale, (-np.array(mean) / np.array(std)).astype(np.float32)


def moves(
    bits: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the offsets down and right, and whether to flip, from random bits."""
    places = _OFFSETS * _OFFSETS
    place = ((bits >> np.uint64(1)) % np.uint64(places)).astype(np.intp)
    return place // _OFFSETS, place % _OFFSETS, (bits & np.uint64(1)).astype(np.bool_)


def crop_and_flip(
    images: Bytes,
    down: npt.NDArray[np.intp],
    right: npt.NDArray[np.intp],
    flip: npt.NDArray[np.bool_],
) -> Bytes:
    """Zero-pad each image, crop it at its offset, and flip it if asked."""
    count, channels, height, width = images.shape
    padded = np.zeros((count, channels, height + 2 * PADDING, width + 2 * PADDING), dtype=np.uint8)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    # Advanced indices on either side of a slice put the samples first: [count, channels, h, w].
    cut = windows[np.arange(count), :, down, right]
    cut[flip] = cut[flip, :, :, ::-1]
    return np.ascontiguousarray(cut)


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def draws(bits: Words) -> npt.NDArray[np.float64]:
    """Return `DRAWS` numbers from 0 to 1 for each sample, from its 64 random bits."""
    steps = np.arange(1, DRAWS + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    words = mix(bits[:, None] + steps[None, :])
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def flips(drawn: Sequence[float]) -> bool:
    """Return whether a sample with these draws is flipped."""
    return drawn[DRAWS - 1] < 0.5


def random_box(height: int, width: int, drawn: Sequence[float]) -> Box:
    """Return a random crop; the centre if no draw fits."""
    for start in range(0, 4 * TRIES, 4):
        area, ratio, down, right = drawn[start : start + 4]
        pixels = height * width * (AREAS[0] + area * (AREAS[1] - AREAS[0]))
        sides = RATIOS[0] * (RATIOS[1] / RATIOS[0]) ** ratio  # log-uniform
        box_width = round(math.sqrt(pixels * sides))
        box_height = round(math.sqrt(pixels / sides))
        if 0 < box_width <= width and 0 < box_height <= height:
            top = int(down * (height - box_height + 1))
            left = int(right * (width - box_width + 1))
            return Box(top, left, box_height, box_width)
    box_height = min(height, max(1, round(width / RATIOS[0])))
    box_width = min(width, max(1, round(height * RATIOS[1])))
    return _in_the_middle(height, width, box_height, box_width)


def middle_box(height: int, width: int, size: tuple[int, int]) -> Box:
    """Return the centre crop with the aspect ratio of `size` (height, width)."""
    scale = MIDDLE * min(height / size[0], width / size[1])
    box_height = max(1, round(size[0] * scale))
    box_width = max(1, round(size[1] * scale))
    return _in_the_middle(height, width, box_height, box_width)


def _in_the_middle(height: int, width: int, box_height: int, box_width: int) -> Box:
    return Box((height - box_height) // 2, (width - box_width) // 2, box_height, box_width)
