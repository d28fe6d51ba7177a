"""Labelled texts from `train.tsv` and `dev.tsv`, as WordPiece tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepscope.data.dataset import DataSet, DataSource, Opened, Split, samples_taken
from stepscope.data.image_index import PackedBytes, content_of, shown
from stepscope.errors import DataError, RequestError, require_packages
from stepscope.records.types import VerifiedFile

SENTENCE, LABEL = "sentence", "label"
# A network has a score for every number up to the largest label: a typo must not fill the memory.
MOST_CLASSES = 10_000

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts and their labels, by index."""

    labels: Integers
    _texts: PackedBytes

    def __len__(self) -> int:
        return len(self.labels)

    def text(self, index: int) -> str:
        """Return one text."""
        return self._texts[index].decode()

    def first(self, samples: int) -> Texts:
        """Return the first `samples` texts."""
        return replace(self, labels=self.labels[:samples])

    def size_bytes(self) -> int:
        """Return the memory size of the texts and labels."""
        return int(self._texts.ends[len(self)]) + 2 * self.labels.nbytes


def read_texts(file: Path) -> Texts:
    """Return the texts of a file; cached until the file changes."""
    try:
        state = file.stat()
        return _read(file, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise DataError(f"cannot read {shown(file)}: {error.strerror}.") from error


@lru_cache(maxsize=4)
def _read(file: Path, changed_ns: int, size_bytes: int) -> Texts:
    header, *lines = _lines(file)
    names = header.split("\t")
    missing = [f"{name!r}" for name in (SENTENCE, LABEL) if name not in names]
    if missing:
        found = ", ".join(map(repr, names)) if header else "an empty line"
        raise DataError(
            f"{shown(file)}: wanted a first line that names the columns {SENTENCE!r} and "
            f"{LABEL!r}, separated by a tab; found {found}. Add {' and '.join(missing)}."
        )
    sentence, label = names.index(SENTENCE), names.index(LABEL)
    texts: list[bytes] = []
    labels: list[int] = []
    for number, line in enumerate(lines, 2):
        if not line:  # after the last line, or an empty line between
            continue
        values = line.split("\t")
        if len(values) != len(names):
            raise DataError(
                f"{shown(file)}, line {number:,}: wanted {len(names)} tab-separated values, as "
                f"in the first line, found {len(values)}. Correct or remove the line."
            )
        texts.append(values[sentence].encode())
        labels.append(_label(values[label], file, number))
    return Texts(np.array(labels, np.int64), PackedBytes(texts))


def _lines(file: Path) -> list[str]:
    content = file.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{shown(file)}, line {line:,}: wanted text in UTF-8, found the byte "
            f"0x{content[error.start]:02x}. Convert it, for instance with `iconv -t UTF-8`."
        ) from error
    # Not `splitlines`, which also splits at characters inside texts.
    return text.replace("\r\n", "\n").split("\n")


def _label(value: str, file: Path, number: int) -> int:
    whole = value.isascii() and value.isdecimal()
    if not whole or len(value) > len(str(MOST_CLASSES)) or int(value) >= MOST_CLASSES:
        raise DataError(
            f"{shown(file)}, line {number:,}: wanted a label that is a whole number from 0 to "
            f"{MOST_CLASSES - 1:,}, found {value!r}. Number the classes from 0."
        )
    return int(value)


NAME = "text"
FILES: dict[Split, str] = {"train": "train.tsv", "test": "dev.tsv"}
SOURCES = ("memory", "synthetic")


def describe(reading: DataSource) -> DataSet:
    """Return the description of the texts at a data source."""
    if reading.source not in SOURCES:
        raise RequestError(
            f"source: texts are small and held in memory; wanted {' or '.join(SOURCES)}, found "
            f"{reading.source}."
        )
    train = _texts("train", reading.data_dir)
    test = _texts("test", reading.data_dir)
    classes = int(train.labels.max()) + 1
    unknown = test.labels[test.labels >= classes]
    if len(unknown):
        raise DataError(
            f"{shown(reading.data_dir / FILES['test'])} has the label {unknown[0]}, and "
            f"{FILES['train']} has labels up to {classes - 1}. Remove those texts, or add training "
            "texts of that class."
        )
    return DataSet(
        name=NAME,
        class_names=tuple(map(str, range(classes))),
        train_samples=len(train),
        test_samples=len(test),
        # `describe` has already found the texts.
        check=lambda data_dir: require_packages("reading texts", "text", "tokenizers"),
        open_batches=_open,
        verify=_verify,
        shape=(reading.sequence_length,),
        tokens=reading.tokens,
        held_bytes=lambda split, samples: _texts(split, reading.data_dir, samples).size_bytes(),
    )


def _texts(split: Split, data_dir: Path, samples: int | None = None) -> Texts:
    """Return the texts of a split; without `dev.tsv` the test split is empty."""
    train_file, test_file = data_dir / FILES["train"], data_dir / FILES["test"]
    try:
        has_train, has_test = train_file.is_file(), test_file.is_file()
    except OSError as error:
        raise DataError(
            f"cannot read {shown(data_dir)}: {error.strerror}. Make it readable, or give another "
            "--data-dir."
        ) from error
    if not has_train:
        raise DataError(
            f"wanted {shown(train_file)}, with a text and its label on each line; "
            f"{shown(data_dir)} {content_of(data_dir)}. Give the folder with {FILES['train']} and "
            f"{FILES['test']} as --data-dir."
        )
    train = read_texts(train_file)
    if not len(train):
        raise DataError(f"wanted training texts in {shown(train_file)}; found none.")
    test = read_texts(test_file) if has_test else train.first(0)
    count = samples_taken(split, samples, len(train), len(test))
    return (train if split == "train" else test).first(count)


def _open(split: Split, reading: DataSource) -> Opened:
    from stepscope.data.datasets.wordpiece import (
        TextBatches,
        make_tokenizer,
        read_vocabulary,
        vocabulary_of,
    )

    texts = _texts(split, reading.data_dir, reading.samples)
    if not len(texts):
        raise DataError(
            f"wanted test texts in {shown(reading.data_dir / FILES[split])}; found none. "
            "Add them, or train without tests: --no-evaluate."
        )
    folder = reading.vocabulary_dir
    tokens = None if folder is None else read_vocabulary(folder)
    if tokens is None:
        # All of them, so that token numbers do not depend on --samples.
        every = _texts("train", reading.data_dir)
        tokens = vocabulary_of([every.text(index) for index in range(len(every))], reading.tokens)
    if len(tokens) > reading.tokens:
        raise RequestError(
            f"the vocabulary in {shown(str(folder))} has {len(tokens):,} tokens, and the network "
            f"takes {reading.tokens:,}. Choose the network that it belongs to."
        )
    return Opened(TextBatches(texts, make_tokenizer(tokens, reading.sequence_length)), len(texts))


def _verify(data_dir: Path) -> list[VerifiedFile]:
    """Check every file, also `test.tsv`, which a run does not use."""

    def one(name: str) -> VerifiedFile:
        try:
            texts = read_texts(data_dir / name)
        except DataError as error:
            return {"file": name, "status": "unreadable", "detail": str(error)}
        return {"file": name, "status": "ok", "detail": f"{len(texts):,} texts"}

    names = [*FILES.values(), *(["test.tsv"] if (data_dir / "test.tsv").is_file() else [])]
    return [one(name) for name in names]
