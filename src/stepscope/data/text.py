"""Texts of somebody's own with a label each: `train.tsv` and `dev.tsv`, as tokens of WordPiece."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path

from stepscope.data.data_set import DataSet, Opened, Report
from stepscope.data.listing import shown
from stepscope.data.reading import Reading
from stepscope.data.samples import Split, Verified, samples_taken
from stepscope.data.text_files import Texts, read_texts
from stepscope.errors import DataError, MissingExtraError, RequestError

NAME = "text"
ABOUT = "texts of your own with a label each: train.tsv and dev.tsv"
FILES: dict[Split, str] = {"train": "train.tsv", "test": "dev.tsv"}
SOURCES = ("memory", "synthetic")


def describe(reading: Reading) -> DataSet:
    """Describe the texts in the folder that a reading names.

    Raises:
        DataError: they are not there, or not what they should be.
        RequestError: the source that is wanted cannot be had.
    """
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
            f"{FILES['train']} has labels up to {classes - 1}. A network knows the classes that it "
            "was trained on: remove those texts, or add some to train on."
        )
    return DataSet(
        name=NAME,
        about=ABOUT,
        class_names=tuple(map(str, range(classes))),
        train_samples=len(train),
        test_samples=len(test),
        check=_check,
        open=_open,
        get=_get,
        verify=_verify,
        shape=(reading.sequence_length,),
        tokens=reading.tokens,
        held_bytes=partial(_held_bytes, reading.data_dir),
    )


def _texts(split: Split, data_dir: Path, samples: int | None = None) -> Texts:
    """Read the texts of a split; a folder without `dev.tsv` has none to test on."""
    train_file, test_file = data_dir / FILES["train"], data_dir / FILES["test"]
    try:
        has_train, has_test = train_file.is_file(), test_file.is_file()
        there = None if has_train else _there(data_dir)
    except OSError as error:
        raise DataError(
            f"cannot look into {shown(data_dir)}: {error.strerror}. Make it readable, or give "
            "another --data-dir."
        ) from error
    if there is not None:
        raise DataError(
            f"wanted {shown(train_file)}, with a text and its label on each line; "
            f"{shown(data_dir)} {there}. Give the folder with {FILES['train']} and "
            f"{FILES['test']} as --data-dir."
        )
    train = read_texts(train_file)
    if not len(train):
        raise DataError(f"wanted texts to train on in {shown(train_file)}; found none.")
    test = read_texts(test_file) if has_test else train.first(0)
    count = samples_taken(split, samples, len(train), len(test))
    return (train if split == "train" else test).first(count)


def _there(folder: Path) -> str:
    if not folder.is_dir():
        return "is no folder"
    names = sorted(each.name for each in folder.iterdir())
    return f"has {', '.join(map(repr, names[:5]))}" if names else "has nothing in it"


def _check(data_dir: Path) -> None:
    """Look for what makes tokens; whether texts are there was seen when they were counted."""
    if importlib.util.find_spec("tokenizers") is None:
        raise MissingExtraError("reading texts", "tokenizers", "text")


def _open(split: Split, reading: Reading) -> Opened:
    from stepscope.data.text_batches import TextBatches
    from stepscope.data.vocabulary import make_tokenizer, read_vocabulary, vocabulary_of

    texts = _texts(split, reading.data_dir, reading.samples)
    if not len(texts):
        raise DataError(
            f"wanted texts to test on in {shown(reading.data_dir / FILES[split])}; found none. "
            "Add them, or train without tests: --no-evaluate."
        )
    folder = reading.vocabulary_dir
    tokens = None if folder is None else read_vocabulary(folder)
    if tokens is None:
        every = _texts("train", reading.data_dir)  # whatever --samples: the numbers stay the same
        tokens = vocabulary_of([every.text(index) for index in range(len(every))], reading.tokens)
    if len(tokens) > reading.tokens:
        raise RequestError(
            f"the vocabulary in {shown(str(folder))} has {len(tokens):,} tokens, and the network "
            f"takes {reading.tokens:,}. Choose the network that it belongs to."
        )
    return Opened(TextBatches(texts, make_tokenizer(tokens, reading.sequence_length)), len(texts))


def _held_bytes(data_dir: Path, split: Split, samples: int | None) -> int:
    return _texts(split, data_dir, samples).size_bytes()


def _get(data_dir: Path, report: Report) -> None:
    raise RequestError(
        f"{NAME} is texts of your own, and nowhere to be had: give where they lie as --data-dir."
    )


def _verify(data_dir: Path) -> list[Verified]:
    """Read every file; `test.tsv`, which a run leaves alone, where it is there."""

    def one(name: str) -> Verified:
        try:
            texts = read_texts(data_dir / name)
        except DataError as error:
            return Verified(name, "unreadable", str(error))
        return Verified(name, "ok", f"{len(texts):,} texts")

    names = [*FILES.values(), *(["test.tsv"] if (data_dir / "test.tsv").is_file() else [])]
    return [one(name) for name in names]
