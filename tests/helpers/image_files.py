"""Small image folders in the ImageNet layout, made with Pillow."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int = 0, height: int = 48, width: int = 64, mode: str = "RGB") -> Image.Image:
    """Draw coarse patches of colour, as a photograph has and as JPEG keeps them."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def encoded(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    """Return an image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def make_folder(root: Path, classes: int = 3, train: int = 4, val: int = 2) -> Path:
    """Make a folder with some JPEGs of several sizes in each class; return it."""
    for split, count in (("train", train), ("val", val)):
        for label in range(classes):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                seed = 1000 * label + 10 * number + (split == "val")
                image = picture(seed, height=40 + 7 * number, width=60 - 5 * number)
                (folder / f"{number:03}.JPEG").write_bytes(encoded(image))
    return root
