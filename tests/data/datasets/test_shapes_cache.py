"""The cache of the built-in data set: the same bytes sooner, and never in the way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from stepscope.cli.data import verify
from stepscope.data.datasets import shapes
from stepscope.data.samples import RECORD_BYTES, MemorySamples

RECORDS = 600  # a file's: a piece and a part of one
NOWHERE = Path("no-such-folder")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stepscope" / shapes.FOLDER


@pytest.fixture(autouse=True)
def files_of_600_records(small_files, monkeypatch) -> None:
    small_files(2, RECORDS)
    monkeypatch.setattr(shapes, "CACHED_FROM", 100)


def same(one: MemorySamples, other: MemorySamples) -> bool:
    return np.array_equal(one.images, other.images) and np.array_equal(one.labels, other.labels)


def never_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*_: object) -> None:
        raise AssertionError("it was drawn again")

    monkeypatch.setattr(shapes, "_draw", drawn)


@pytest.mark.parametrize("samples", [None, RECORDS, RECORDS + 400, 501])
def test_what_is_read_is_what_was_drawn(cache, samples, monkeypatch):
    wanted = shapes.draw("train", 0, samples or 2 * RECORDS)
    shapes.load("train", NOWHERE)
    assert len(list(cache.iterdir())) == 2
    never_draw(monkeypatch)
    again = shapes.load("train", NOWHERE, samples)
    assert same(again, wanted)
    assert (again.images.dtype, again.labels.dtype) == (np.uint8, np.int64)
    assert again.images.flags.writeable


@pytest.mark.parametrize("harm", ["cut", "empty", "first byte", "last byte"])
def test_a_damaged_file_is_drawn_again_and_replaced(cache, harm):
    drawn = shapes.load("test", NOWHERE)
    path = cache / "test.bin"
    whole = path.read_bytes()
    damaged = {
        "cut": whole[:-1],
        "empty": b"",
        "first byte": bytes([whole[0] ^ 1]) + whole[1:],
        "last byte": whole[:-1] + bytes([whole[-1] ^ 1]),
    }
    path.write_bytes(damaged[harm])
    assert same(shapes.load("test", NOWHERE), drawn)
    assert path.read_bytes() == whole


def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_not_read(cache):
    cache.mkdir(parents=True)
    os.mkfifo(cache / "train_1.bin")  # to open it would wait for a writer
    (cache / "train_2.bin").mkdir()
    assert same(shapes.load("train", NOWHERE), shapes.draw("train", 0, 2 * RECORDS))
    assert (cache / "train_1.bin").is_file()
    assert (cache / "train_2.bin").is_dir()


def test_few_samples_are_drawn_and_the_cache_is_not_touched(cache):
    assert len(shapes.load("train", NOWHERE, 99)) == 99
    assert len(shapes.load("test", NOWHERE, 499)) == 99
    assert not cache.exists()


def test_few_samples_of_a_second_file_leave_it_out(cache):
    wanted = shapes.draw("train", 0, RECORDS + 99)
    for _ in range(2):
        assert same(shapes.load("train", NOWHERE, RECORDS + 99), wanted)
        assert [file.name for file in cache.iterdir()] == ["train_1.bin"]


@pytest.mark.parametrize("place", ["a file", "no home"])
def test_without_a_place_for_a_cache_samples_are_drawn(tmp_path, place, cache, monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    if place == "a file":
        (tmp_path / "cache").write_text("")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", no_home)
    assert same(shapes.load("train", NOWHERE), shapes.draw("train", 0, 2 * RECORDS))
    assert not list(tmp_path.rglob("*.bin"))


def test_verifying_names_the_cache_and_what_is_damaged_in_it(cache, tmp_path, capsys):
    def said(*, as_json: bool = False) -> str:
        assert verify("shapes", data_dir=tmp_path / "data", json=as_json) == 0, "it does no harm"
        return capsys.readouterr().out

    assert f"cache      {cache}  empty\n" in said()
    shapes.load("train", NOWHERE)
    assert f"cache      {cache}  2 files, 3.5 MiB\n" in said()
    (cache / "train_2.bin").write_bytes(b"")
    assert f"truncated  {cache / 'train_2.bin'}  wanted" in said()
    assert "drawn again when needed" in said()
    told = json.loads(said(as_json=True))["cache"]
    assert (told["folder"], told["size_bytes"]) == (str(cache), RECORDS * RECORD_BYTES)
    assert [file["status"] for file in told["files"]] == ["ok", "truncated"]
