"""A table of an earlier version, before a run goes on in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.records import run_folder, schema
from stepscope.records.csv_log import CsvLog, append_columns
from stepscope.records.run_reader import load_run
from stepscope.records.table import read_table

NOW = ("epoch", "step", "added", "later")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


def test_rows_from_before_a_column_and_after_it_read_together(table: Path) -> None:
    table.write_text("epoch,step\n1,1\n1,2\n")
    append_columns(table, NOW)
    with CsvLog(table) as log:
        log.append("1,3,0.5,7")
    read = read_table(table)
    assert list(read["step"]) == [1, 2, 3]
    assert list(read["added"]) == [None, None, 0.5]
    assert read.cut_lines == 0


@pytest.mark.parametrize(
    "text",
    [
        "epoch,step,added,later\n1,2,3,4\n",
        "step,epoch\n1,1\n",
        "epoch,step,added,later,newer\n",
        "",
    ],
    ids=["as it is now", "in another order", "of a later version", "empty"],
)
def test_a_table_that_lacks_nothing_or_is_another_is_left_as_it_is(table: Path, text: str) -> None:
    table.write_text(text)
    append_columns(table, NOW)
    assert table.read_text() == text


def test_a_line_that_a_kill_cut_short_is_not_made_whole(table: Path) -> None:
    table.write_text("epoch,step\n1,1\n1,")
    append_columns(table, NOW)
    assert table.read_text() == "epoch,step,added,later\n1,1,,\n"


def test_a_run_that_goes_on_has_the_columns_of_today(tmp_path: Path) -> None:
    made = run_folder.create(tmp_path, "old", "run", {})
    steps = made.path / schema.STEPS
    before = schema.STEP_COLUMNS[:-1]
    values = {"epoch": "1", "step": "1", "detail": "full"}
    row = ",".join(values.get(column, "") for column in before)
    steps.write_text(f"{','.join(before)}\n{row}\n")
    made.restore_missing_files()
    assert steps.read_text().partition("\n")[0] == ",".join(schema.STEP_COLUMNS)
    assert list(load_run(made.path).steps["communication_s"]) == [None]
