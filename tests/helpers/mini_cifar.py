"""CIFAR-10 in miniature: three files of five records."""

from __future__ import annotations

import hashlib

import numpy as np

from stepscope.data.samples import PublishedFiles, RecordFile, pack

RECORDS = 5
STEMS = ("data_batch_1", "data_batch_2", "test_batch")


def records_of(stem: str) -> np.ndarray:
    """Return the records of a file."""
    rng = np.random.default_rng(STEMS.index(stem))
    images = rng.integers(0, 256, (RECORDS, 3, 32, 32), dtype=np.uint8)
    return pack(images, rng.integers(0, 10, RECORDS))


def md5(content: bytes) -> str:
    """Return the md5 of some bytes."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


FILES = [RecordFile(f"{stem}.bin", RECORDS, md5(records_of(stem).tobytes())) for stem in STEMS]
MINI = PublishedFiles(tuple(FILES[:2]), tuple(FILES[2:]))
