"""Samples in a bucket: one PNG each, or a block of 1,000 in a tar shard.

A shard has the format of WebDataset: 000042.png and 000042.cls, its label as text.
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from stepscope.errors import DataError

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


def encode_image(image: Bytes) -> bytes:
    """Return an image [3, H, W] as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).save(file, "PNG")
    return file.getvalue()


def decode_image(body: bytes, name: str) -> Bytes:
    """Return the image [3, H, W] of a PNG file."""
    try:
        with Image.open(io.BytesIO(body), formats=("PNG",)) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise DataError(
            f"{name} is not a PNG image ({error}). Upload it again with `stepscope data put`."
        ) from None
    return pixels.transpose(2, 0, 1)


def pack_shard(first: int, images: Bytes, labels: Labels) -> bytes:
    """Return a tar shard of samples, the first of which has the number `first`."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as shard:
        for number, (image, label) in enumerate(zip(images, labels, strict=True), start=first):
            for suffix, content in (("png", encode_image(image)), ("cls", b"%d" % label)):
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    return file.getvalue()


@dataclass(frozen=True)
class Shard:
    """The samples of a shard, in the order of their keys; images still as files."""

    name: str
    files: tuple[bytes, ...]
    labels: Labels

    def image(self, place: int) -> Bytes:
        """Decode one image [3, H, W]."""
        return decode_image(self.files[place], f"image {place} of shard {self.name}")


def unpack_shard(body: bytes, name: str, samples: int) -> Shard:
    """Join the images and labels of a shard by their keys."""
    parts: dict[str, dict[str, bytes]] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:") as shard:
            for member in shard:
                content = shard.extractfile(member)
                if content is not None:
                    key, _, suffix = member.name.partition(".")
                    parts.setdefault(key, {})[suffix] = content.read()
    except (tarfile.TarError, EOFError) as error:
        raise DataError(
            f"shard {name} is truncated or not a tar file ({error}). {_AGAIN}"
        ) from None
    if len(parts) != samples:
        raise DataError(f"shard {name}: wanted {samples} samples, found {len(parts)}. {_AGAIN}")
    keys = sorted(parts)
    for key in keys:
        for suffix in {"png", "cls"} - parts[key].keys():
            raise DataError(f"shard {name}: sample {key} has no .{suffix}. {_AGAIN}")
        if not parts[key]["cls"].strip().isdigit():
            raise DataError(f"shard {name}: {key}.cls is not a class number. {_AGAIN}")
    files = tuple(parts[key]["png"] for key in keys)
    labels = np.array([int(parts[key]["cls"]) for key in keys], dtype=np.int64)
    return Shard(name, files, labels)


_AGAIN = "Upload it again with `stepscope data put`."
