"""The run folder: made whole in one move, closed in one move, readable at every moment between."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.errors import DISK_FULL_ERRNOS, DataError, MachineError, RequestError, disk_full
from stepscope.records import schema
from stepscope.records.csvlog import append_columns
from stepscope.records.record_folder import RecordFolder, make_folder, point_latest, slug


class RunFolder(RecordFolder):
    """A run folder on disk, open for writing."""

    INFO = schema.RUN

    def restore_missing_files(self) -> None:
        """Put back empty tables that are gone, where no checkpoint counts on their rows.

        Tables that an earlier version wrote get the columns that were added since.
        """
        for name, columns in schema.COLUMNS.items():
            file = self.path / name
            if file.is_file() and file.stat().st_size > 0:
                append_columns(file, columns)
                continue
            sampled = name in (schema.TELEMETRY, schema.ENERGY)
            if not sampled and (self.path / schema.CHECKPOINT).exists():
                raise DataError(
                    f"{file} is missing or empty, and the checkpoint is of a run that had it. "
                    f"Put it back, or remove {schema.CHECKPOINT} to begin the run again."
                )
            file.write_text(",".join(columns) + "\n", encoding="utf-8")

    def add_event(self, kind: str, time_s: float, **detail: Any) -> None:
        """Append one line to `events.jsonl`, on disk when this returns."""
        line = json.dumps({"time_s": round(time_s, 6), "event": kind, **detail}) + "\n"
        try:
            file = os.open(self.path / schema.EVENTS, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = os.fstat(file).st_size
                cut = size and os.pread(file, 1, size - 1) != b"\n"
                data = ("\n" * cut + line).encode()
                while data:
                    data = data[os.write(file, data) :]
            finally:
                os.close(file)
        except FileNotFoundError as error:
            raise MachineError(f"{self.path} is gone: who removed it?") from error
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                raise disk_full(error, schema.EVENTS) from error
            raise


def create(out: Path, name: str, kind: str, spec: Mapping[str, Any]) -> RunFolder:
    """Make `out/<time>-<name>/` with every file in it, and point `out/latest` to it."""
    made = _create(out, f"{time.strftime('%Y%m%d-%H%M%S')}-{slug(name)}", name, kind, spec)
    point_latest(out, made.path.name)
    return made


def create_at(
    path: Path,
    name: str,
    kind: str,
    spec: Mapping[str, Any],
    choice: Mapping[str, Any] | None = None,
) -> RunFolder:
    """Make a run folder at an exact path, a trial's in a sweep; `latest` stays where it is.

    `choice` says how its settings were chosen, where another experiment chose them.

    Raises:
        RequestError: something is there already.
    """
    if path.exists():
        raise RequestError(f"{path} is there already, and a new run must not mix with it.")
    return _create(path.parent, path.name, name, kind, spec, choice)


def create_rank(run: Path, rank: int, kind: str, spec: Mapping[str, Any]) -> RunFolder:
    """Make `ranks/<rank>/` in a distributed run's folder: a run folder of its own."""
    return _create(run / schema.RANKS, str(rank), f"rank {rank}", kind, spec)


def _create(
    out: Path,
    wanted: str,
    name: str,
    kind: str,
    spec: Mapping[str, Any],
    choice: Mapping[str, Any] | None = None,
) -> RunFolder:
    def fill(building: Path, identity: str) -> None:
        for file, columns in schema.COLUMNS.items():
            (building / file).write_text(",".join(columns) + "\n", encoding="utf-8")
        (building / schema.EVENTS).touch()
        RunFolder(building).write_info(
            {
                "schema": schema.SCHEMA,
                "id": identity,
                "name": name,
                "kind": kind,
                "status": schema.RUNNING,
                "reason": None,
                "started_unix_s": time.time(),
                "process": None,
                "spec": dict(spec),
                "environment": {},
                "instrument": {},
                "summary": {},
                **({} if choice is None else {"choice": dict(choice)}),
            }
        )

    return RunFolder(make_folder(out, wanted, fill))
