"""The manifest of a bucket: each object with its size, checksum and label.

`data put` writes it last, so a bucket with a manifest is complete. Shards contain their labels.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from stepscope.data.dataset import Split
from stepscope.errors import DataError

FILE = "manifest.json"
FORMAT = "stepscope-samples-1"

Layout = Literal["objects", "shards"]


@dataclass(frozen=True)
class ManifestEntry:
    """One object: a sample with its label, or a shard of several samples."""

    key: str
    size_bytes: int
    sha256: str
    samples: int = 1
    label: int | None = None

    def check(self, body: bytes) -> str | None:
        """Return what is wrong with the content of this object, or None."""
        if len(body) != self.size_bytes:
            return f"wanted {self.size_bytes} bytes, found {len(body)}"
        if hashlib.sha256(body).hexdigest() != self.sha256:
            return "its checksum differs from the manifest"
        return None


@dataclass(frozen=True)
class Manifest:
    """The objects of a data set, in the order of its samples."""

    data: str
    layout: Layout
    train: tuple[ManifestEntry, ...]
    test: tuple[ManifestEntry, ...]

    def entries(self, split: Split) -> tuple[ManifestEntry, ...]:
        """Return the objects of a split."""
        return self.train if split == "train" else self.test

    def count(self, split: Split) -> int:
        """Return the number of samples of a split."""
        return sum(entry.samples for entry in self.entries(split))

    def first(self, split: Split, samples: int) -> tuple[ManifestEntry, ...]:
        """Return the objects that hold the first `samples` of a split."""
        taken, held = [], 0
        for entry in self.entries(split):
            if held >= samples:
                break
            taken.append(entry)
            held += entry.samples
        return tuple(taken)

    def to_json(self) -> str:
        """Return the content of `manifest.json`."""
        train, test = ([_plain(entry) for entry in each] for each in (self.train, self.test))
        about = {"format": FORMAT, "data": self.data, "layout": self.layout}
        return json.dumps({**about, "train": train, "test": test}, indent=0)


def read_manifest(content: bytes | str, where: str) -> Manifest:
    """Read a manifest; `where` names it in errors."""
    try:
        values = json.loads(content)
        if values["format"] != FORMAT:
            raise ValueError(f"wanted format {FORMAT}, found {values['format']!r}")
        if values["layout"] not in get_args(Layout):
            raise ValueError(f"wanted layout objects or shards, found {values['layout']!r}")
        splits = [tuple(_entry(each) for each in values[split]) for split in ("train", "test")]
        return Manifest(str(values["data"]), values["layout"], *splits)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where} is not a valid manifest ({type(error).__name__}: {error}). "
            "Upload it again with `stepscope data put`."
        ) from None


def _plain(entry: ManifestEntry) -> dict[str, str | int]:
    held = {"samples": entry.samples} if entry.label is None else {"label": entry.label}
    return {"key": entry.key, "bytes": entry.size_bytes, "sha256": entry.sha256, **held}


def _entry(values: Any) -> ManifestEntry:
    key = str(values["key"])
    if key.startswith("/") or ".." in key.split("/"):  # it becomes a path when it is downloaded
        raise ValueError(f"key {key!r} leads out of the bucket")
    size_bytes, sha256, label = int(values["bytes"]), str(values["sha256"]), values.get("label")
    if label is not None:
        return ManifestEntry(key, size_bytes, sha256, label=int(label))
    return ManifestEntry(key, size_bytes, sha256, samples=int(values["samples"]))
