"""A table of any length: columns of numbers that are small in memory and read like lists."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.records.table import GrowingTable, Numbers, Table, read_table

FIELDS = st.one_of(st.just(""), st.floats(-1e9, 1e9).map(repr), st.sampled_from(["nan", "x", "1,"]))


def table_of(folder: Path, text: str | bytes) -> Table:
    file = folder / "any.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_table(file)


def lines_of(header: str, rows: Sequence[str]) -> str:
    return "\n".join([header, *rows, ""])


def test_values_have_the_type_of_their_column_and_empty_is_unknown(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        "epoch,split,total_s,samples\n1,train,2.5,64\n1,test,,\n",
    )
    assert list(table.rows()) == [
        {"epoch": 1, "split": "train", "total_s": 2.5, "samples": 64},
        {"epoch": 1, "split": "test", "total_s": None, "samples": None},
    ]
    assert isinstance(table["epoch"][0], int)
    assert isinstance(table["total_s"][0], float)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (b"data_s,workers\n0,0\n", {"data_s": [0.0], "workers": [0]}),
        (b"step,detail\r\n1,full\r\n2,off\r\n", {"step": [1, 2], "detail": ["full", "off"]}),
        (b"step_s,step\n0.5,1\n", {"step_s": [0.5], "step": [1]}),
        (b"step,tokens_per_s\n1,7\n2,\n", {"step": [1, 2], "tokens_per_s": [7.0, None]}),
        (b"step,step_s\n1,2,3\n4\n5,6\n", {"step": [5], "step_s": [6.0]}),
    ],
    ids=["zero is known", "CRLF", "any order", "a later column", "lengths do not add up"],
)
def test_columns_are_read_by_name(
    tmp_path: Path, text: bytes, columns: dict[str, list[float | str | None]]
) -> None:
    table = table_of(tmp_path, text)
    assert table.columns == columns
    assert table["idle_device_s"] == [None] * len(table), "the file lacks it"


@pytest.mark.parametrize(
    "garbage",
    [b"1", b"1,2,3", b"", b"x,y", b'"', b'1,"2', b"\0\0\0\0", b"\xff\xfe,\x80", b"1.5,2", b"\r"],
)
def test_a_garbage_line_is_left_out_and_the_lines_around_it_are_not(
    tmp_path: Path, garbage: bytes
) -> None:
    table = table_of(tmp_path, b"step,step_s\n1,0.5\n" + garbage + b"\n3,0.75\n")
    assert table.columns == {"step": [1, 3], "step_s": [0.5, 0.75]}
    assert table.cut_lines >= 1


def test_a_missing_or_empty_file_is_a_table_without_rows(tmp_path: Path) -> None:
    for table in (read_table(tmp_path / "none.csv"), table_of(tmp_path, "")):
        assert (len(table), table["epoch"], list(table.rows())) == (0, [], [])


def test_a_column_of_known_numbers_takes_eight_bytes_each(tmp_path: Path) -> None:
    rows = [f"1,{number},{number / 8},word" for number in range(5000)]
    table = table_of(tmp_path, lines_of("epoch,step,step_s,detail", rows))
    assert isinstance(table["step"], Numbers)
    assert table["step"].itemsize == table["step_s"].itemsize == 8  # type: ignore[attr-defined]
    assert table["step"] == list(range(5000))
    assert table["step_s"][-1] == 4999 / 8
    assert len({id(word) for word in table["detail"]}) == 1


def test_one_unknown_value_far_down_leaves_those_before_it(tmp_path: Path) -> None:
    rows = [str(number) for number in range(4500)]
    table = table_of(tmp_path, lines_of("step,loss", [*(f"{r},1" for r in rows), "9,"]))
    assert table["loss"] == [*[1.0] * 4500, None]
    assert table["step"] != table["loss"]
    assert table["step"][-1] == 9


def test_bad_lines_far_apart_are_left_out_alone(tmp_path: Path) -> None:
    rows = [f"{number},0.5" for number in range(6000)]
    rows[10], rows[4100], rows[5999] = "1,2,3", f"{2**70},0.5", "5999,zero"
    table = table_of(tmp_path, lines_of("step,step_s", rows))
    assert table.cut_lines == 3
    assert table["step"] == [n for n in range(6000) if n not in (10, 4100, 5999)]


@settings(deadline=None)
@given(st.lists(st.tuples(FIELDS, FIELDS), max_size=40))
def test_what_can_be_read_is_read_whatever_stands_beside_it(
    tmp_path_factory, rows: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("table")
    table = table_of(folder, lines_of("a,b", [",".join(row) for row in rows]))
    good = [row for row in rows if not {"x", "1,", "nan"} & {*row}]
    wanted = [repr([float(f) if f else None for f in row]) for row in good]
    assert [repr([row["a"], row["b"]]) for row in table.rows()] == wanted
    assert table.cut_lines == len(rows) - len(good)


# --- while it is written --------------------------------------------------------------------------


ROWS = st.lists(
    st.sampled_from(["1,2,0.5,full", "1,3,,off", "1,x,1,full", "1", "7,8,nan,full", "1,2,3,é"]),
    max_size=12,
)


def seen(table: Table) -> tuple[object, ...]:
    return repr({name: list(column) for name, column in table.columns.items()}), table.cut_lines


@settings(deadline=None)
@given(rows=ROWS, cuts=st.lists(st.integers(0, 200), max_size=6))
def test_in_whatever_pieces_it_is_written_its_whole_rows_are_read(
    rows: list[str], cuts: list[int]
) -> None:
    text = "\n".join(["epoch,step,loss,detail", *rows, ""]).encode()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "any.csv"
        file.write_bytes(text)
        whole = read_table(file)
        file.unlink()
        growing = GrowingTable(file)
        for end in sorted(cuts):
            file.write_bytes(text[:end])
            assert seen(growing.read()) == seen(cut := read_table(file))
            assert len(cut) + cut.cut_lines == max(0, text[:end].count(b"\n") - 1)
            assert repr([*cut.rows()]) == repr([*whole.rows()][: len(cut)])
        file.write_bytes(text)
        assert seen(growing.read()) == seen(whole)


def test_a_file_that_is_not_there_yet_is_empty_until_it_is(tmp_path: Path) -> None:
    growing = GrowingTable(tmp_path / "any.csv")
    assert len(growing.read()) == 0
    (tmp_path / "any.csv").write_text("epoch,step\n1,1\n")
    assert growing.read()["step"] == [1]
    assert growing.read()["loss"] == [None]  # of the schema, and not in the file


def test_rows_that_are_replaced_are_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "any.csv"
    file.write_text("epoch,step,step_s\n1,1,0.1\n1,2,0.2\n1,3,0.3\n")
    growing = GrowingTable(file)
    growing.read()
    file.write_text("epoch,step,step_s\n1,1,0.1\n1,2,0.9\n1,3,0.8\n1,4,0.7\n")
    assert growing.read()["step_s"] == [0.1, 0.9, 0.8, 0.7]
    file.write_text("epoch,step,step_s\n1,1,0.1\n")
    assert growing.read()["step_s"] == [0.1]


def test_a_file_that_only_grows_is_not_read_from_its_start_again(tmp_path: Path) -> None:
    file = tmp_path / "any.csv"
    file.write_text("epoch,step\n1,1\n1,2\n")
    growing = GrowingTable(file)
    growing.read()
    # What was read stays, although the file has another first row by now.
    file.write_text("epoch,step\n9,9\n1,2\n1,3\n")
    assert growing.read()["step"] == [1, 2, 3]
