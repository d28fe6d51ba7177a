"""A pseudo file gives its value or the reason why not, whatever is in it."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import RequestError
from stepscope.hardware.procfs import (
    VARIABLE,
    Reading,
    read_integer,
    read_name,
    read_text,
    system_root,
)


def test_what_ends_a_file_is_no_part_of_what_it_says(tmp_path):
    (tmp_path / "model").write_bytes(b"NVIDIA Jetson Nano\0\n")
    assert read_text(tmp_path / "model").value == "NVIDIA Jetson Nano"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gone", "does not exist"),
        ("empty/below", "does not exist"),
        (".", "cannot be read: Is a directory"),
        ("empty", "is empty"),
    ],
)
def test_a_file_without_a_value_is_named_with_the_reason(tmp_path, name, said):
    (tmp_path / "empty").write_text("\n")
    file = tmp_path / name
    assert read_text(file) == Reading(None, f"{file} {said}")


@pytest.mark.parametrize("garbage", ["fast", "1.5", "0x10", "1 2", "٣", "9" * 30])
def test_garbage_is_no_number_and_is_shown(tmp_path, garbage):
    (tmp_path / "freq").write_text(garbage, encoding="utf-8")
    reading = read_integer(tmp_path / "freq")
    assert reading.value is None
    assert repr(garbage[:40]) in (reading.reason or "")


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_reason_and_never_both(tmp_path_factory, said):
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_bytes(said)
    for reading in (read_text(file), read_integer(file)):
        assert (reading.value is None) != (reading.reason is None)


@given(st.integers(-(10**19), 10**19))
def test_every_number_that_a_kernel_writes_is_read_back(tmp_path_factory, number):
    file = tmp_path_factory.getbasetemp() / "number"
    file.write_text(f"{number}\n")
    assert read_integer(file).value == number


def test_the_root_is_that_of_the_system_unless_a_tree_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert system_root() == Path("/")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert system_root() == tmp_path
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(RequestError, match="wanted a folder"):
        system_root()


def test_a_pipe_in_a_file_s_place_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (read_text, read_name, read_integer):
        assert "is empty" in (read(tmp_path / "pipe").reason or "")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)  # somebody who holds it and says nothing
    try:
        assert "cannot be read" in (read_text(tmp_path / "pipe").reason or "")
        assert "cannot be read" in (read_integer(tmp_path / "pipe").reason or "")
    finally:
        os.close(writer)


def test_a_name_is_one_short_line_that_steers_no_terminal(tmp_path):
    file = tmp_path / "model"
    file.write_text("Board\n\x1b[31m\u202ered\0")
    assert read_name(file).value == "Board �[31m�red"
    file.write_bytes(b"A" * 10_000_000)
    assert "expected a name, found 1,048,576 characters" in (read_name(file).reason or "")


@given(st.text(max_size=300))
def test_whatever_a_file_says_its_name_can_be_printed(tmp_path_factory, said):
    file = tmp_path_factory.getbasetemp() / "name"
    file.write_text(said, encoding="utf-8", errors="replace")
    name = read_name(file).value
    assert name is None or (name.isprintable() and 0 < len(name) <= 200)
