"""The manifest of a bucket: each object with its size, checksum and label.

`data put` writes it last, so a bucket with a manifest is complete. Shards contain their labels.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from stepscope.data.dataset import Split
from stepscope.errors import DataError
from stepscope.files import parse_json

FILE = "manifest.json"
FORMAT = "stepscope-samples-1"
_LONGEST_NAME = 255  # bytes of a file's name

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
        values = parse_json(content)
        if values["format"] != FORMAT:
            raise ValueError(f"wanted format {FORMAT}, found {values['format']!r}")
        if values["layout"] not in get_args(Layout):
            raise ValueError(f"wanted layout objects or shards, found {values['layout']!r}")
        splits = [tuple(_entry(each) for each in values[split]) for split in ("train", "test")]
        _check_labels(splits)
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
    key, sha256 = values["key"], values["sha256"]
    if not isinstance(key, str) or not isinstance(sha256, str):
        raise ValueError("wanted the key and the checksum of each object as text")
    parts = key.split("/")  # it becomes a path when it is downloaded
    if key.startswith("/") or ".." in parts:
        raise ValueError(f"key {key!r} leads out of the bucket")
    if not key.isprintable() or not all(0 < len(part.encode()) <= _LONGEST_NAME for part in parts):
        raise ValueError(f"key {key[:40]!a} cannot be the name of a file")
    held = {name: values[name] for name in ("label", "samples") if values.get(name) is not None}
    for name, number in {"bytes": values["bytes"], **held}.items():
        if type(number) is not int or not 0 <= number < 2**63:
            raise ValueError(f"{name} of {key!r}: wanted a count, found {number!r}")
    if "label" in held:
        held.pop("samples", None)
    elif "samples" not in held:
        raise ValueError(f"{key!r} has neither a label nor a number of samples")
    return ManifestEntry(key, values["bytes"], sha256, **held)


def _check_labels(splits: Sequence[Sequence[ManifestEntry]]) -> None:
    """Raise ValueError for an object that is listed with different labels."""
    label_of: dict[str, int | None] = {}
    for entry in itertools.chain(*splits):
        if label_of.setdefault(entry.key, entry.label) != entry.label:
            raise ValueError(
                f"{entry.key!r} has the labels {label_of[entry.key]} and {entry.label}"
            )
