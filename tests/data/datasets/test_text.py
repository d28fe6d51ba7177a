"""Texts as a data set: its vocabulary, and the batches of tokens made of it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from text_files import TEXTS, make_texts, write_texts

from stepscope.data import dataset_registry
from stepscope.data.dataset import DataSource
from stepscope.data.datasets.text import describe
from stepscope.data.datasets.wordpiece import (
    SPECIAL,
    make_tokenizer,
    read_vocabulary,
    train_vocabulary,
    vocabulary_of,
)
from stepscope.data.sample_order import BatchKey
from stepscope.errors import DataError, MissingExtraError, RequestError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stepscope" / "vocabularies"


@pytest.fixture
def reading(tmp_path: Path) -> DataSource:
    return DataSource(make_texts(tmp_path / "reviews"))


def batch_of(reading: DataSource, *indices: int) -> tuple[torch.Tensor, torch.Tensor]:
    return describe(reading).open_batches("train", reading).batches[BatchKey(1, np.array(indices))]


class TestWhatATextIs:
    def test_it_is_described_by_what_lies_there(self, reading):
        found = dataset_registry.find("text", reading)
        assert found.class_names == ("0", "1")
        assert (found.train_samples, found.test_samples) == (40, 8)
        assert (found.shape, found.tokens) == ((128,), 30_522)
        assert found.blank(2).shape == (2, 128)
        assert found.blank(2).dtype == torch.int64
        assert found.input_bytes == 128 * 8

    def test_there_is_a_class_for_every_number_up_to_the_largest_label(self, reading):
        write_texts(reading.data_dir / "train.tsv", [("good", 4), ("bad", 0)])
        assert describe(reading).classes == 5

    def test_it_tells_what_it_takes_in_memory(self, reading):
        held = describe(reading).held_bytes
        assert held is not None
        assert held("train", 4) == sum(len(text) for text, _ in TEXTS) + 4 * 16

    @pytest.mark.parametrize("source", ["local", "s3://bucket"])
    def test_it_is_held_in_memory_and_no_other_source_is_taken(self, reading, source):
        with pytest.raises(RequestError, match=r"source: .* wanted memory or synthetic, found"):
            describe(replace(reading, source=source))

    def test_a_label_that_only_dev_has_is_refused(self, reading):
        write_texts(reading.data_dir / "dev.tsv", [("odd", 2)])
        with pytest.raises(DataError, match=r"dev\.tsv has the label 2, .* labels up to 1"):
            describe(reading)

    def test_an_empty_folder_is_refused_with_what_was_wanted(self, tmp_path):
        with pytest.raises(DataError, match=r"wanted .*train\.tsv, .* has nothing in it\. Give"):
            describe(DataSource(tmp_path))
        with pytest.raises(DataError, match=r"nowhere is not a folder"):
            describe(DataSource(tmp_path / "nowhere"))

    def test_a_file_without_texts_is_refused(self, reading):
        write_texts(reading.data_dir / "train.tsv", [])
        with pytest.raises(DataError, match=r"wanted training texts in .*; found none"):
            describe(reading)

    def test_without_dev_one_can_train_and_not_test(self, reading):
        (reading.data_dir / "dev.tsv").unlink()
        assert describe(reading).test_samples == 0
        assert describe(reading).open_batches("train", reading).samples == 40
        with pytest.raises(DataError, match=r"wanted test texts .* --no-evaluate"):
            describe(reading).open_batches("test", reading)

    def test_verifying_reads_every_file(self, reading):
        (reading.data_dir / "test.tsv").write_bytes(b"sentence\tlabel\nna\xefve\t0\n")
        found = {each["file"]: each for each in describe(reading).verify(reading.data_dir)}
        assert [each["status"] for each in found.values()] == ["ok", "ok", "unreadable"]
        assert found["train.tsv"]["detail"] == "40 texts"
        assert "UTF-8" in found["test.tsv"]["detail"]

    def test_a_missing_extra_is_named(self, reading, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(MissingExtraError, match=r"tokenizers, .*'stepscope\[text\]'"):
            describe(reading).check(reading.data_dir)


class TestBatches:
    def test_a_batch_is_as_long_as_its_longest_text(self, reading):
        tokens, labels = batch_of(reading, 0, 3, 2)
        assert labels.tolist() == [1, 0, 1]
        assert tokens.dtype == labels.dtype == torch.int64
        lengths = (tokens != 0).sum(1).tolist()
        assert max(lengths) == tokens.shape[1] == lengths[1]
        assert batch_of(reading, 0)[0].shape == (1, lengths[0])
        assert tokens[0, : lengths[0]].tolist() == batch_of(reading, 0)[0][0].tolist()

    def test_a_text_begins_and_ends_with_its_marks_and_is_cut_to_a_length(self, reading):
        cut, _ = batch_of(replace(reading, sequence_length=6), 3)
        assert cut.shape == (1, 6)
        assert (cut[0, 0], cut[0, -1]) == (SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]"))

    def test_the_number_of_samples_changes_no_token(self, reading):
        few, _ = batch_of(replace(reading, samples=4), 3)
        assert torch.equal(few, batch_of(reading, 3)[0])

    def test_nothing_is_written_where_the_data_lies(self, reading, cache):
        batch_of(reading, 0)
        assert sorted(each.name for each in reading.data_dir.iterdir()) == ["dev.tsv", "train.tsv"]
        assert len(list(cache.iterdir())) == 1


MANY = [" ".join(f"w{n * k % 97}x{n % 7}" for k in range(1, 9)) + " naïve Été" for n in range(60)]


class TestVocabulary:
    def test_the_same_texts_make_the_same_one_in_any_process(self):
        code = (
            "import hashlib, sys, json\n"
            "from stepscope.data.datasets.wordpiece import train_vocabulary\n"
            "tokens = train_vocabulary(json.load(sys.stdin), 300)\n"
            "print(hashlib.md5('\\n'.join(tokens).encode()).hexdigest())"
        )
        command, given = [sys.executable, "-c", code], json.dumps(MANY)
        there = subprocess.check_output(command, input=given, text=True)
        here = hashlib.md5("\n".join(train_vocabulary(MANY, 300)).encode()).hexdigest()
        assert there == f"{here}\n"

    def test_it_begins_with_the_marks_and_keeps_to_its_size(self):
        tokens = train_vocabulary(MANY, 150)
        assert tuple(tokens[:4]) == SPECIAL
        assert len(tokens) == len(set(tokens)) == 150
        assert not any(token != token.lower() for token in tokens[4:])

    def test_rare_characters_of_a_large_alphabet_are_unknown(self):
        texts = [chr(0x4E00 + n) for n in range(1200)] + [chr(0x4E00)] * 3
        tokens = train_vocabulary(texts, 5000)
        assert chr(0x4E00) in tokens
        assert len(tokens) == len(SPECIAL) + 2 * 1000
        assert tokens == train_vocabulary(texts, 5000)

    def test_it_is_trained_once(self, cache):
        tokens = vocabulary_of(MANY, 150)
        (file,) = cache.iterdir()
        assert file.read_text(encoding="utf-8").split("\n") == tokens
        file.write_text("\n".join(SPECIAL))
        assert vocabulary_of(MANY, 150) == list(SPECIAL)
        assert len(vocabulary_of(MANY, 151)) == 151
        assert len(vocabulary_of(MANY[:-1], 150)) == 150

    def test_where_no_cache_can_be_written_it_is_trained_each_time(self, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert vocabulary_of(MANY, 150) == train_vocabulary(MANY, 150)

    def test_one_that_lies_with_weights_is_used(self, reading, tmp_path):
        tokens = ["[PAD]", "film", "[UNK]", "[CLS]", "[SEP]", "fine"]
        (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
        found, _ = batch_of(replace(reading, vocabulary_dir=tmp_path), 0)
        assert found.tolist() == [[3, 2, 5, 1, 4]]
        (tmp_path / "vocab.txt").unlink()
        numbers = {token: number for number, token in enumerate(tokens)}
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": numbers}}))
        assert read_vocabulary(tmp_path) == tokens
        with pytest.raises(RequestError, match=r"has 6 tokens, and the network takes 5"):
            batch_of(replace(reading, vocabulary_dir=tmp_path, tokens=5), 0)

    def test_one_that_is_none_is_refused(self, tmp_path):
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(DataError, match=r"cannot read the vocabulary in .*KeyError"):
            read_vocabulary(tmp_path)
        with pytest.raises(DataError, match=r"wanted \[PAD\], .* found no \[PAD\], \[UNK\]"):
            make_tokenizer(["[CLS]", "[SEP]"], 8)
        with pytest.raises(DataError, match=r"found '\[UNK\]' first"):
            make_tokenizer(["[UNK]", "[PAD]", "[CLS]", "[SEP]"], 8)
