"""Check real files and answers against the generated JSON Schemas, strictly.

The published schemas allow keys that they do not name, since a later version may add some. Here a
key without a type is a fault: it is missing in `records/types.py`.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from json_schemas import ANSWERS, make_schemas
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match


def check_answer(arguments: list[str], answer: dict[str, Any], folder: Path) -> None:
    """Check what a command printed for `--json`, and the events of the run that it names."""
    command = "error" if "error" in answer else " ".join(arguments[:2])
    if command not in ANSWERS:
        command = arguments[0]
    check(f"answer of {command}", answer)
    if "path" in answer and (events := folder / answer["path"] / "events.jsonl").is_file():
        for line in events.read_text(encoding="utf-8").splitlines():
            check("events.jsonl", json.loads(line))


def check(name: str, value: object) -> None:
    """Check a value against the schema of a file or an answer."""
    error = best_match(_validator(name).iter_errors(value))
    if error is not None:
        raise AssertionError(f"{name}: {error.json_path}: {error.message[:300]}")


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    schemas = _closed_schemas()
    return Draft202012Validator({**schemas["properties"][name], "$defs": schemas["$defs"]})


@functools.cache
def _closed_schemas() -> Any:
    return _close(make_schemas())


def _close(schema: Any) -> Any:
    """Return a schema whose objects have no properties besides the named ones."""
    if isinstance(schema, list):
        return [_close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _close(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed["additionalProperties"] = False
    return closed
