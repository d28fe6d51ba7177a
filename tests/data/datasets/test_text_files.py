"""Texts in tab-separated files: what is read, and what is refused with its line."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_files import write_texts

from stepscope.data.datasets.text import MOST_CLASSES, Texts, read_texts
from stepscope.errors import DataError


def texts_of(found: Texts) -> list[tuple[str, int]]:
    return [(found.text(index), int(found.labels[index])) for index in range(len(found))]


def written(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "train.tsv"
    file.write_bytes(content)
    return file


def test_texts_come_with_their_labels_in_the_order_of_the_file(tmp_path):
    rows = [("good", 1), ('no "quotes" are special', 0), ("", 2), ("naïve 映画", 1)]
    found = read_texts(write_texts(tmp_path / "train.tsv", rows))
    assert texts_of(found) == rows
    assert texts_of(found.first(2)) == rows[:2]
    assert texts_of(pickle.loads(pickle.dumps(found))) == rows
    assert found.first(1).size_bytes() == len("good") + 8 + 8


def test_columns_go_by_name(tmp_path):
    file = written(tmp_path, b"label\tindex\tsentence\n1\t17\tgood\n0\t18\tbad\n")
    assert texts_of(read_texts(file)) == [("good", 1), ("bad", 0)]


@pytest.mark.parametrize(
    "content",
    [
        b"sentence\tlabel\r\ngood\t1\r\n",
        b"\xef\xbb\xbfsentence\tlabel\ngood\t1",
        b"sentence\tlabel\n\n\ngood\t1\n\n",
    ],
    ids=["windows", "byte order mark", "empty lines"],
)
def test_what_editors_do_to_a_file_does_no_harm(tmp_path, content):
    assert texts_of(read_texts(written(tmp_path, content))) == [("good", 1)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"names the columns 'sentence' and 'label', .*found an empty line\."),
        (b"sentence\nfine\n", r"found 'sentence'\. Add 'label'\."),
        (b"fine\t1\ndull\t0\n", r"found 'fine', '1'\. Add 'sentence' and 'label'\."),
        (b"sentence,label\nfine,1\n", r"found 'sentence,label'\."),
        (b"sentence\tlabel\nfine\n", r"line 2: wanted 2 tab-sep.* found 1\."),
        (
            b"sentence\tlabel\nfine\t1\na\tb\t0\n",
            r"line 3: wanted 2 tab-sep.* found 3\.",
        ),
        (b"sentence\tlabel\nfine\tgood\n", r"line 2: wanted a label .* found 'good'"),
        (b"sentence\tlabel\nfine\t-1\n", r"line 2: .* found '-1'"),
        (b"sentence\tlabel\nfine\t1.0\n", r"line 2: .* found '1.0'"),
        (b"sentence\tlabel\nfine\t\n", r"line 2: .* found ''"),
        ("sentence\tlabel\nfine\t²\n".encode(), r"line 2: .* found '²'"),
        (b"sentence\tlabel\nfine\t10000\n", r"from 0 to 9,999, found '10000'"),
        (b"sentence\tlabel\nfine\t" + b"9" * 9999 + b"\n", r"from 0 to 9,999"),
        (b"sentence\tlabel\nfine\t1\nna\xefve\t0\n", r"line 3: wanted text in UTF-8, .* 0xef"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        read_texts(written(tmp_path, content))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*none\.tsv: No such file"):
        read_texts(tmp_path / "none.tsv")


def test_a_file_that_changed_is_read_again(tmp_path):
    file = write_texts(tmp_path / "train.tsv", [("good", 1)])
    assert len(read_texts(file)) == 1
    write_texts(file, [("good", 1), ("bad", 0)])
    assert len(read_texts(file)) == 2


LINES = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]))


@given(st.lists(st.tuples(LINES, st.integers(0, MOST_CLASSES - 1)), max_size=8))
def test_any_text_comes_back_as_it_was(tmp_path_factory, rows):
    file = write_texts(tmp_path_factory.mktemp("texts") / "train.tsv", rows)
    assert texts_of(read_texts(file)) == rows


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("texts") / "train.tsv"
    file.write_bytes(b"sentence\tlabel\n" + content)
    with contextlib.suppress(DataError):
        assert len(read_texts(file)) <= content.count(b"\n") + 1
