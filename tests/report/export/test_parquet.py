"""The tables of a run in Parquet, read back by Polars."""

from __future__ import annotations

import io
import sys

import polars
import pytest
from written_tables import epoch_row, step, write_tables

from stepscope.errors import MissingExtraError
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.report.export import parquet


def read_back(run: Run, source: str) -> polars.DataFrame:
    ((content, rows),) = parquet.encode(run, source)
    read = polars.read_parquet(io.BytesIO(content))
    assert len(read) == rows
    return read


def test_columns_keep_their_names_their_order_and_their_types(tmp_path):
    read = read_back(write_tables(tmp_path, [step(1), step(2, loss="nan")]), schema.STEPS)
    assert read.columns == [*schema.STEP_COLUMNS, schema.THROTTLED]
    assert read["epoch"].to_list() == [1, 1]
    assert read.schema["epoch"] == read.schema["load_worker"] == polars.Int64
    assert read.schema["step_s"] == read.schema["idle_device_s"] == polars.Float64
    assert read.schema["detail"] == polars.String
    assert read["loss"].is_nan().to_list() == [False, True]


def test_unknown_is_null_and_never_a_number(tmp_path):
    run = write_tables(tmp_path, epochs=[epoch_row(1, 2.0, accuracy=None)])
    (row,) = read_back(run, schema.EPOCHS).to_dicts()
    assert row["accuracy"] is None
    assert (row["split"], row["top5"]) == ("test", 0.875)


def test_a_table_without_a_row_has_its_columns_nevertheless(tmp_path):
    run = write_tables(tmp_path, [step(1)])
    (tmp_path / schema.TELEMETRY).unlink()
    read = read_back(run, schema.TELEMETRY)
    assert read.columns == list(schema.TELEMETRY_COLUMNS)
    assert read.schema["rss_bytes"] == polars.Int64


def test_a_column_of_a_newer_version_is_kept(tmp_path):
    run = write_tables(tmp_path, [step(1)])
    (tmp_path / schema.EPOCHS).write_text("epoch,split,invented_s\n1,train,0.5\n")
    assert read_back(run, schema.EPOCHS)["invented_s"].to_list() == [0.5]


def test_without_polars_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingExtraError, match=r"polars.*stepscope\[frames\]"):
        list(parquet.encode(write_tables(tmp_path, [step(1)]), schema.STEPS))
