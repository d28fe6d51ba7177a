"""The tables of a run as Parquet files with typed columns."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.table import Table
from stepscope.report.export import nothing_recorded

FOLDER = "parquet"
FILES = {
    "steps.parquet": schema.STEPS,
    "epochs.parquet": schema.EPOCHS,
    "telemetry.parquet": schema.TELEMETRY,
}


def encode(run: Run, source: str) -> Iterator[tuple[bytes, int]]:
    """Yield a table as one Parquet file, with its number of rows; without rows, its columns."""
    tables = {schema.STEPS: run.steps, schema.EPOCHS: run.epochs, schema.TELEMETRY: run.telemetry}
    if not any(map(len, tables.values())):
        raise nothing_recorded(run, "row")
    table: Table = tables[source]
    columns = {name: table[name] for name in schema.COLUMNS[source]} | table.all_columns()
    written = BytesIO()
    Table(columns).to_polars().write_parquet(written)
    yield written.getvalue(), len(table)
