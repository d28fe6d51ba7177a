"""Decode, crop and resize an image file to RGB pixels.

simplejpeg decodes JPEGs, at a fraction of their size if that is enough; Pillow decodes everything
else. Both give the same pixels. Measurements are in docs/decisions.md (decision 20).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import simplejpeg  # type: ignore[import-untyped]
import torch
import torch.nn.functional as F
from PIL import Image, UnidentifiedImageError

from stepscope.data.image_transforms import Box

Pixels = npt.NDArray[np.uint8]
Choose = Callable[[int, int], Box]

_JPEG = b"\xff\xd8\xff"
_OWN_COLOURS = ("Gray", "YCbCr", "RGB")
_MOST_PIXELS = 2**28  # a larger image is a mistake or an attack: 0.8 GB of pixels


class UnreadableImage(Exception):  # noqa: N818 - about an image, not a program
    """The bytes are not a readable image; the message says why."""


def decode(data: bytes, choose: Choose, size: tuple[int, int]) -> Pixels:
    """Return RGB bytes [height, width, 3], cropped to `choose(height, width)` and resized."""
    if data.startswith(_JPEG):
        try:
            return _decode_jpeg(data, choose, size)
        except ValueError:
            pass  # Pillow reads files with recoverable errors
    pixels = _decode_any(data)
    return _bring_to(_cut(pixels, choose(*pixels.shape[:2])), size)


def _decode_jpeg(data: bytes, choose: Choose, size: tuple[int, int]) -> Pixels:
    height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    if colours not in _OWN_COLOURS or height * width > _MOST_PIXELS:
        raise ValueError(f"{colours} of {height}x{width}")
    box = choose(height, width)
    fits = (by for by in (8, 4, 2) if box.height // by >= size[0] and box.width // by >= size[1])
    shrink = next(fits, 1)  # libjpeg is fast for powers of two
    pixels: Pixels = simplejpeg.decode_jpeg(
        data, "RGB", min_height=-(-height // shrink), min_width=-(-width // shrink)
    )
    top, left = box.top // shrink, box.left // shrink
    return _bring_to(_cut(pixels, Box(top, left, box.height // shrink, box.width // shrink)), size)


def _decode_any(data: bytes) -> Pixels:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata
            with Image.open(io.BytesIO(data)) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise UnreadableImage(f"too large: {image.width:,} x {image.height:,} pixels")
                return _as_rgb(image)
    except UnreadableImage:
        raise
    except UnidentifiedImageError as error:
        found = f"begins with {data[:8]!r}" if data else "it is empty"
        raise UnreadableImage(f"not a readable image: {found}") from error
    except Exception as error:  # a decoder may raise anything for a broken file
        raise UnreadableImage(f"{type(error).__name__}: {error}") from error


def _as_rgb(image: Image.Image) -> Pixels:
    """Convert an image to RGB. Transparent pixels keep their colour."""
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255
        grey = (np.asarray(image, dtype=np.int64) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return np.asarray(image.convert("RGB"))


def _cut(pixels: Pixels, box: Box) -> Pixels:
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]


def _bring_to(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    if pixels.shape[:2] == size:
        return pixels
    if not pixels.flags.writeable:  # torch warns about read-only arrays
        pixels = pixels.copy()
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = F.interpolate(image, size=size, mode="bilinear", antialias=True)
    brought: Pixels = resized[0].permute(1, 2, 0).numpy()
    return brought
