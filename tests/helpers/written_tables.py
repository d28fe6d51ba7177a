"""Run folders whose tables are written by hand, row by row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whole_records import whole_event, whole_run

from stepscope.records import schema
from stepscope.records.run_reader import Run, load_run

Rows = Sequence[dict[str, Any]]
STARTED_UNIX_S = 1_750_000_000.0


_NO_PHASES = {f"{phase}_s": 0.0 for phase in schema.PHASES}


def step(number: int, **changes: Any) -> dict[str, Any]:
    """Give a step of 10 ms, whole, as a loop without workers leaves it."""
    return {
        "epoch": 1,
        "step": number,
        "start_s": number / 100,
        "samples": 32,
        "data_s": 0.002,
        "transfer_s": 0.0,
        "forward_s": 0.003,
        "backward_s": 0.004,
        "optimizer_s": 0.0005,
        "other_s": 0.0005,
        "step_s": 0.01,
        "loss": 2.5,
        "detail": "full",
        **changes,
    }


def epoch_row(epoch: int, start_s: float | None, **changes: Any) -> dict[str, Any]:
    """Give the row of a test, or of what `split` says."""
    about = {"epoch": epoch, "split": "test", "start_s": start_s, "total_s": 1.0, "samples": 64}
    return {**about, "loss": 2.25, "accuracy": 0.5, "top5": 0.875, **changes}


def write_tables(
    folder: Path,
    steps: Rows = (),
    epochs: Rows = (),
    telemetry: Rows = (),
    events: Sequence[Mapping[str, Any]] = (),
    **info: Any,
) -> Run:
    """Write a run folder of these rows, completed unless `info` says something else."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"schema": 1, "name": "by-hand", "kind": "run", "status": schema.COMPLETED}
    begun = {"started_unix_s": STARTED_UNIX_S}
    record = whole_run({**about, **begun, **info})
    (folder / schema.RUN).write_text(json.dumps(record))
    tables = {schema.STEPS: steps, schema.EPOCHS: epochs, schema.TELEMETRY: telemetry}
    for file, rows in tables.items():
        write_table(folder, file, rows)
    lines = [f"{json.dumps(whole_event(event))}\n" for event in events]
    (folder / schema.EVENTS).write_text("".join(lines))
    return load_run(folder)


def write_table(folder: Path, file: str, rows: Rows) -> None:
    """Write one table of a run; what a row does not have is unknown."""
    columns = schema.COLUMNS[file]
    if file == schema.STEPS:
        rows = [{**(_NO_PHASES if row.get("detail") == "full" else {}), **row} for row in rows]
    lines = [",".join(_field(row.get(name)) for name in columns) for row in rows]
    (folder / file).write_text("\n".join([",".join(columns), *lines]) + "\n")


def _field(value: Any) -> str:
    return "" if value is None else str(value)
