"""Bytes of an image file in, RGB pixels of the wanted size out."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import encoded, picture
from PIL import Image

from stepscope.data.image_decode import UnreadableImage, decode
from stepscope.data.image_transforms import Box


def whole(height: int, width: int) -> Box:
    return Box(0, 0, height, width)


def as_pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_of_any_colours_gives_the_pixels_that_pillow_gives(mode, progressive):
    data = encoded(picture(mode=mode), progressive=progressive)
    assert np.array_equal(decode(data, whole, (48, 64)), as_pillow(data))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM"])
def test_other_formats_are_known_by_their_bytes(kind):
    data = encoded(picture(), kind)
    assert np.array_equal(decode(data, whole, (48, 64)), as_pillow(data))


def test_what_is_transparent_keeps_its_colour():
    image = picture(mode="RGBA")
    image.putalpha(128)
    assert np.array_equal(decode(encoded(image, "PNG"), whole, (48, 64)), np.asarray(picture()))


def test_a_palette_with_transparency_becomes_rgb_without_a_warning():
    data = encoded(picture().quantize(8), "PNG", transparency=b"\x00\xff")
    assert decode(data, whole, (48, 64)).shape == (48, 64, 3)


def test_grey_of_16_bits_is_scaled_and_not_cut_off():
    deep = Image.fromarray(np.array([[0, 0x8000], [0x80FF, 0xFFFF]], dtype=np.uint16))
    found = decode(encoded(deep, "PNG"), whole, (2, 2))
    assert found[:, :, 0].tolist() == [[0, 128], [128, 255]]
    assert np.array_equal(found[:, :, 0], found[:, :, 2])


def test_a_large_jpeg_that_is_decoded_smaller_looks_as_if_it_had_been_resized():
    image = picture(height=400, width=640)
    exact = np.asarray(image.resize((32, 20), Image.Resampling.BILINEAR), dtype=int)
    found = decode(encoded(image, quality=95), whole, (20, 32)).astype(int)
    assert np.abs(found - exact).mean() < 3


def test_only_the_part_that_was_chosen_is_seen():
    image = Image.new("RGB", (64, 64))
    image.paste((255, 255, 255), (32, 0, 64, 64))
    found = decode(encoded(image, "PNG"), lambda height, width: Box(0, 32, 64, 32), (8, 8))
    assert found.min() == 255


def test_a_fault_that_does_no_harm_is_got_over():
    data = encoded(picture())
    stuffed = data[:2] + b"\xff\xff\xff" + data[2:]  # fill bytes before a marker
    assert np.array_equal(decode(stuffed, whole, (48, 64)), as_pillow(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is empty"),
        (b"<html>not found</html>", r"not a readable image: begins with b'<html>no'"),
        (encoded(picture())[:300], "."),
        (encoded(picture())[:-200], "truncated"),
        (encoded(picture(), "PNG")[:200], "."),
    ],
    ids=["empty", "a page", "a head", "a JPEG cut short", "a PNG cut short"],
)
def test_what_is_broken_is_told(data, why):
    with pytest.raises(UnreadableImage, match=why):
        decode(data, whole, (8, 8))


def test_an_image_that_would_fill_the_memory_is_refused_by_its_header():
    header = b"P6 30000 30000 255\n"
    with pytest.raises(UnreadableImage, match=r"too large: 30,000 x 30,000|exceeds limit"):
        decode(header, whole, (8, 8))


@given(st.binary(max_size=200), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_no_bytes_raise_anything_else(tail, kind):
    heads = (b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", encoded(picture())[:400])
    with contextlib.suppress(UnreadableImage):
        decode(heads[kind] + tail, whole, (8, 8))


@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_part_of_any_image_comes_out_in_the_wanted_size(sides, size, drawn):
    height, width = drawn.draw(st.integers(1, sides[0])), drawn.draw(st.integers(1, sides[1]))
    top = drawn.draw(st.integers(0, sides[0] - height))
    left = drawn.draw(st.integers(0, sides[1] - width))
    data = encoded(picture(height=sides[0], width=sides[1]))
    found = decode(data, lambda *_: Box(top, left, height, width), size)
    assert (found.shape, found.dtype) == ((*size, 3), np.uint8)
