"""Folders of texts to test with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

TEXTS = (
    ("a fine film", 1),
    ("a dull film", 0),
    ("fine , and funny too", 1),
    ("neither new nor funny , and so long that nobody saw the end of it", 0),
)


def write_texts(file: Path, rows: Sequence[tuple[str, object]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows), ""]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def make_texts(folder: Path, train: int = 40, dev: int = 8) -> Path:
    """Make a folder of so many texts, all of them one of four."""
    write_texts(folder / "train.tsv", (TEXTS * train)[:train])
    write_texts(folder / "dev.tsv", (TEXTS * dev)[:dev])
    return folder
