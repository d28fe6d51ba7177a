"""A table that is being written: every look takes in what was added, and nothing twice."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.records.table import GrowingTable, Table, read_table

ROWS = st.lists(
    st.sampled_from(["1,2,0.5,full", "1,3,,off", "1,x,1,full", "1", "7,8,nan,full", "1,2,3,é"]),
    max_size=12,
)


def seen(table: Table) -> tuple[object, ...]:
    return repr({name: list(column) for name, column in table.columns.items()}), table.cut_lines


@settings(deadline=None)
@given(rows=ROWS, cuts=st.lists(st.integers(0, 200), max_size=6))
def test_in_whatever_pieces_it_is_written_it_reads_like_the_whole(
    rows: list[str], cuts: list[int]
) -> None:
    text = "\n".join(["epoch,step,loss,detail", *rows, ""]).encode()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "any.csv"
        growing = GrowingTable(file)
        for end in sorted(cuts):
            file.write_bytes(text[:end])
            assert seen(growing.read()) == seen(read_table(file))
        file.write_bytes(text)
        assert seen(growing.read()) == seen(read_table(file))


def test_a_file_that_is_not_there_yet_is_empty_until_it_is(tmp_path: Path) -> None:
    growing = GrowingTable(tmp_path / "steps.csv")
    assert len(growing.read()) == 0
    (tmp_path / "steps.csv").write_text("epoch,step\n1,1\n")
    assert growing.read()["step"] == [1]
    assert growing.read()["loss"] == [None]  # of the schema, and not in the file


def test_rows_that_are_replaced_are_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text("epoch,step,step_s\n1,1,0.1\n1,2,0.2\n1,3,0.3\n")
    growing = GrowingTable(file)
    growing.read()
    file.write_text("epoch,step,step_s\n1,1,0.1\n1,2,0.9\n1,3,0.8\n1,4,0.7\n")
    assert growing.read()["step_s"] == [0.1, 0.9, 0.8, 0.7]
    file.write_text("epoch,step,step_s\n1,1,0.1\n")
    assert growing.read()["step_s"] == [0.1]


def test_a_file_that_only_grows_is_not_read_from_its_start_again(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text("epoch,step\n1,1\n1,2\n")
    growing = GrowingTable(file)
    growing.read()
    # What was read stays, although the file has another first row by now.
    file.write_text("epoch,step\n9,9\n1,2\n1,3\n")
    assert growing.read()["step"] == [1, 2, 3]


def test_line_ends_of_another_system_are_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_bytes(b"epoch,step,detail\r\n1,1,full\r\n1,2,off\r\n")
    assert read_table(file)["detail"] == ["full", "off"]
