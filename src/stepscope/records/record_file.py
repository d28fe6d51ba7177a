"""The JSON file of a record, opened for reading: of a run, of a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepscope.errors import RequestError
from stepscope.records import schema


def read_record(path: str | Path, name: str, what: str) -> tuple[Path, dict[str, Any]]:
    """Read the record in a folder, which may be named by the file itself; return both.

    `what` is what it records: a run, a sweep.

    Raises:
        RequestError: there is none, or not one that this version reads.
    """
    folder = Path(path)
    if folder.name == name:
        folder = folder.parent
    try:
        info = json.loads((folder / name).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise RequestError(
            f"{folder} is not a {what} folder: there is no {name} in it. "
            f"Give the folder that a {what} printed at its end, such as runs/latest."
        ) from None
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {folder / name}: {error}") from error
    if not isinstance(info, dict) or not isinstance(info.get("schema"), int):
        raise RequestError(f"{folder / name} is not the record of a {what}: it has no `schema`.")
    if info["schema"] > schema.SCHEMA:
        raise RequestError(
            f"{folder} was written by a newer stepscope (schema {info['schema']}, this one reads "
            f"up to {schema.SCHEMA}). Update stepscope to read it."
        )
    return folder.resolve(), info
