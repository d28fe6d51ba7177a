from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.records import csv_log
from stepscope.records.csv_log import CsvLog, keep_rows, number


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(csv_log, "monotonic", clock)
    return clock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n")
    return path


def test_rows_wait_until_the_interval_is_over_and_then_go_together(
    file: Path, clock: Clock
) -> None:
    with CsvLog(file) as log:
        log.append("1,1")
        clock.now_s += 0.4
        log.append("2,2")
        assert file.read_text() == "a,b\n"
        clock.now_s += 0.1
        log.append("3,3")
        assert file.read_text() == "a,b\n1,1\n2,2\n3,3\n"
        log.append("4,4")
        assert file.read_text() == "a,b\n1,1\n2,2\n3,3\n"


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("write", [CsvLog.flush, CsvLog.close])
def test_flushing_and_closing_write_what_waits_and_nothing_the_second_time(
    file: Path, write: Callable[[CsvLog], None]
) -> None:
    log = CsvLog(file)
    log.append("1,1")
    write(log)
    write(log)
    assert file.read_text() == "a,b\n1,1\n"


@pytest.mark.usefixtures("clock")
def test_rows_are_written_also_when_the_work_fails(file: Path) -> None:
    def train() -> None:
        with CsvLog(file) as log:
            log.append("1,1")
            raise RuntimeError("training")

    with pytest.raises(RuntimeError, match="training"):
        train()
    assert file.read_text() == "a,b\n1,1\n"


def test_a_short_write_is_gone_on_with(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    with CsvLog(file) as log:
        log.append("123456,7")
    assert file.read_text() == "a,b\n123456,7\n"


def test_a_file_that_does_not_exist_is_not_made_without_its_header(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CsvLog(tmp_path / "none.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_a_kill_cut_short_is_taken_off_before_more_is_written(file: Path) -> None:
    file.write_text("a,b\n1,1\n12")
    with CsvLog(file) as log:
        log.append("2,2")
    assert file.read_text() == "a,b\n1,1\n2,2\n"


def test_a_whole_file_is_left_as_it_is_when_it_is_opened(file: Path) -> None:
    rows = "".join(f"{n},{n}\n" for n in range(20_000))  # longer than the part that is looked at
    file.write_text("a,b\n" + rows)
    CsvLog(file).close()
    assert file.read_text() == "a,b\n" + rows


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0, "0"), (0.0, "0"), (1.5, "1.5"), (10**12, "1000000000000"), (1e-9, "1e-09")],
)
def test_unknown_is_an_empty_field_and_zero_is_not(value: float | None, text: str) -> None:
    assert number(value) == text


@given(st.floats(-1e6, 1e6) | st.integers())
def test_a_number_reads_back_to_nine_digits_and_a_whole_one_exactly(value: float) -> None:
    read = type(value)(number(value))
    assert read == (value if isinstance(value, int) else pytest.approx(value, rel=1e-8))


@pytest.mark.parametrize(
    ("content", "wanted", "kept"),
    [
        (b"1,x\n2,x\n3,x\n", lambda row: row["a"] != "2", "1,x\n3,x\n"),
        (b"1,x\n", lambda row: False, ""),
        *[(b"1,x\n" + cut, bool, "1,x\n") for cut in (b"3", b"3,", b"3,fu", b",", b"\0\0\0\0")],
        (b"1,x\n\xff\xfe\n2\n3,x,9\n4,x\n", bool, "1,x\n4,x\n"),
    ],
)
def test_keeping_rows_drops_unwanted_and_damaged_ones_and_keeps_the_header(
    file: Path, content: bytes, wanted: Callable[[dict[str, str]], bool], kept: str
) -> None:
    file.write_bytes(b"a,b\n" + content)
    number_before = file.stat().st_ino
    keep_rows(file, wanted)
    assert file.read_text() == "a,b\n" + kept
    assert file.stat().st_ino != number_before, "the file is replaced at once"
    assert [entry.name for entry in file.parent.iterdir()] == ["t.csv"]
