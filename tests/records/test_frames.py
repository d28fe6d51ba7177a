"""Tables of a record as frames of pandas and Polars."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_tables import step, write_tables

from stepscope.errors import MissingExtraError
from stepscope.records.table import Numbers, Table


def test_a_frame_of_polars_has_null_for_unknown_and_keeps_a_loss_that_is_no_number(tmp_path: Path):
    run = write_tables(tmp_path, [step(1, loss="nan"), step(2, loss=None), step(3, loss=0.5)])
    loss = run.steps.to_polars()["loss"]
    assert loss.is_null().to_list() == [False, True, False]
    assert loss.is_nan().to_list() == [True, None, False]


@pytest.mark.parametrize("known", [True, False])
def test_the_type_of_a_column_does_not_depend_on_what_is_known(known: bool):
    values = {
        "rss_bytes": Numbers("q", [2**40]) if known else [None],
        "power_w": Numbers("d", [7.5]) if known else [None],
        "detail": ["full"] if known else [None],
    }
    table = Table(values)
    assert [str(kind) for kind in table.to_pandas().dtypes] == ["Int64", "float64", "string"]
    assert table.to_polars().dtypes == [polars.Int64, polars.Float64, polars.String]


def test_a_table_of_a_file_that_is_not_there_is_an_empty_frame():
    assert Table({}).to_pandas().empty
    assert Table({}).to_polars().is_empty()


COLUMNS = {
    "read_bytes": st.none() | st.integers(-(2**63), 2**63 - 1),
    "power_w": st.none() | st.floats(allow_nan=False),
    "split": st.none() | st.text(st.characters(codec="utf-8")),
}


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.fixed_dictionaries(COLUMNS)))
def test_what_goes_into_a_frame_comes_out_of_it(rows):
    table = Table({name: [row[name] for row in rows] for name in COLUMNS})
    assert table.to_polars().to_dicts() == rows
    back = table.to_pandas().astype(object)
    assert back.where(back.notna(), None).to_dict("records") == rows


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_not_there_is_named_with_its_extra(
    library: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{library}.*stepscope\[frames\]"):
        getattr(Table({"epoch": [1]}), f"to_{library}")()


def test_reading_a_run_imports_neither(tmp_path: Path):
    write_tables(tmp_path, [step(1)])
    code = (
        f"import sys, stepscope; stepscope.load_run({str(tmp_path)!r}).steps;"
        "print(sorted({'pandas', 'polars', 'numpy', 'torch', 'rich'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
