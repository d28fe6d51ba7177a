"""The built-in data set with small files, for tests that write them."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Callable

import pytest
from mini_cifar import MINI

from stepscope.data.dataset import Split
from stepscope.data.datasets import cifar, shapes
from stepscope.data.samples import PublishedFiles, RecordFile, pack


@functools.cache
def drawn_file(split: Split, name: str, start: int, records: int) -> RecordFile:
    """Describe a file of drawn records."""
    drawn = shapes.draw(split, start, start + records)
    content = pack(drawn.images, drawn.labels).data
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return RecordFile(name, records, md5, zlib.crc32(content))


@pytest.fixture
def mini(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the files of CIFAR-10 by three of five records."""
    monkeypatch.setattr(cifar, "FILES", MINI)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Replace the files of the data set by a number of small training files, and one for tests."""

    def replace_files(train_files: int, records: int) -> None:
        train = tuple(
            drawn_file("train", f"train_{number + 1}.bin", number * records, records)
            for number in range(train_files)
        )
        test = (drawn_file("test", "test.bin", 0, records),)
        monkeypatch.setattr(shapes, "FILES", PublishedFiles(train, test))

    return replace_files
