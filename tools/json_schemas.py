"""Write `docs/schemas.json`: the JSON Schema of every file and answer, from `records/types.py`.

    python tools/json_schemas.py

`properties` names the file or the command, `$defs` has the types. A later version may add keys, so
the schemas allow keys that they do not name; the tests do not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from stepscope.records import types

PAGE = Path(__file__).resolve().parents[1] / "docs" / "schemas.json"

FILES: dict[str, Any] = {
    "run.json": types.RunRecord,
    "events.jsonl": types.RunEvent,
    "sweep.json": types.SweepRecord,
    "lab.json": types.LabRecord,
}
# The answer of each command with `--json`, and of any command that fails.
ANSWERS: dict[str, Any] = {
    "run": types.RunAnswer,
    "trace": types.RunAnswer,
    "resume": types.RunAnswer,
    "report": types.ReportAnswer,
    "compare": types.CompareAnswer,
    "export": types.ExportAnswer,
    "serve": types.ServeAnswer,
    "workers": types.WorkersAnswer,
    "max-batch": types.MaxBatchAnswer,
    "bottleneck": types.BottleneckAnswer,
    "memory": types.MemoryAnswer,
    "sweep": types.SweepAnswer,
    "scale": types.ScalingAnswer,
    "lab": types.LabAnswer | types.MemoryLabAnswer | types.SecondEpochAnswer | types.LabsAnswer,
    "accel estimate": types.LayerEstimate | types.NetworkEstimate,
    "accel score": types.ScoreAnswer,
    "accel search": types.SearchAnswer,
    "doctor": (
        types.DoctorAnswer | types.PeaksAnswer | types.PreparedAnswer | types.RestoredAnswer
    ),
    "summary": types.NetworkAnswer,
    "data get": types.DataCheckAnswer,
    "data verify": types.DataCheckAnswer,
    "data put": types.DataPutAnswer,
    "error": types.ErrorAnswer,
}


def make_schemas() -> dict[str, Any]:
    """Return the schemas of all files and answers, with shared definitions."""
    roots = {**FILES, **{f"answer of {name}": kind for name, kind in ANSWERS.items()}}
    references, definitions = TypeAdapter.json_schemas(
        [(name, "validation", TypeAdapter(kind)) for name, kind in roots.items()]
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Files and answers of stepscope",
        "properties": {name: reference for (name, _), reference in references.items()},
        "$defs": _without_titles(definitions["$defs"]),
    }


def _without_titles(schema: Any) -> Any:
    """Drop the titles that pydantic makes of the names of properties."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


def to_text() -> str:
    """Return the schemas as they stand in the docs."""
    return json.dumps(make_schemas(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    PAGE.write_text(to_text(), encoding="utf-8")
