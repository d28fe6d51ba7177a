"""Which part of an image is taken, and whether it is mirrored."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.data.image_transforms import (
    AREAS,
    DRAWS,
    PADDING,
    Box,
    crop_and_flip,
    draws,
    flips,
    middle_box,
    random_box,
)
from stepscope.data.sample_order import random_bits

SIDES = st.integers(1, 5000)


def drawn_for(samples: int) -> list[list[float]]:
    drawn: list[list[float]] = draws(random_bits(0, 1, np.arange(samples))).tolist()
    return drawn


def lies_inside(box: Box, height: int, width: int) -> bool:
    down = 0 <= box.top < box.top + box.height <= height
    return down and 0 <= box.left < box.left + box.width <= width


@given(SIDES, SIDES, st.lists(st.floats(0, 1, exclude_max=True), min_size=DRAWS, max_size=DRAWS))
def test_a_random_part_lies_inside_the_image(height, width, drawn):
    assert lies_inside(random_box(height, width, drawn), height, width)


@given(SIDES, SIDES, st.integers(1, 600), st.integers(1, 600))
def test_the_middle_lies_inside_the_image(height, width, down, right):
    assert lies_inside(middle_box(height, width, (down, right)), height, width)


def test_the_middle_is_the_usual_224_pixels_of_256():
    assert middle_box(256, 256, (224, 224)) == Box(16, 16, 224, 224)
    assert middle_box(512, 1024, (224, 224)) == Box(32, 288, 448, 448)


def test_random_parts_are_of_all_sizes_and_places_and_half_of_them_flip():
    boxes = [random_box(200, 200, drawn) for drawn in drawn_for(2000)]
    areas = np.array([box.height * box.width / 200**2 for box in boxes])
    assert areas.min() < 0.1
    assert areas.max() > 0.9
    assert AREAS[0] * 0.95 < areas.min()
    centres = np.array([box.left + box.width / 2 for box in boxes])
    assert 95 < centres.mean() < 105
    ratios = np.array([box.width / box.height for box in boxes])
    assert 0.7 < ratios.min() < 0.8
    assert 1.25 < ratios.max() < 1.42
    assert 0.45 < np.mean([flips(drawn) for drawn in drawn_for(2000)]) < 0.55


def test_a_very_long_image_gives_its_middle_where_no_part_fits():
    box = random_box(10, 1000, [0.99, 0.0, 0.5, 0.5] * 10 + [0.0])
    assert box == Box(0, 493, 10, 13)


def test_draws_depend_on_nothing_but_the_bits():
    bits = random_bits(3, 2, np.arange(10))
    assert np.array_equal(draws(bits.copy())[4:6], draws(bits[4:6].copy()))
    assert len(np.unique(draws(bits))) == 10 * DRAWS


@given(st.integers(0, 2 * PADDING), st.integers(0, 2 * PADDING), st.booleans())
def test_a_crop_is_cut_out_of_the_padded_image_and_mirrored_when_it_flips(down, right, flip):
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
    made = crop_and_flip(
        images, np.array([down, PADDING]), np.array([right, PADDING]), np.array([flip, False])
    )
    padded = np.pad(images[0], ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    wanted = padded[:, down : down + 32, right : right + 32]
    assert np.array_equal(made[0], wanted[:, :, ::-1] if flip else wanted)
    assert np.array_equal(made[1], images[1]), "in the middle and unflipped it is the image itself"
