"""The run folder: made whole in one move, closed in one move, readable at every moment between."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import DISK_FULL_ERRNOS, DataError, MachineError, RequestError, disk_full
from stepscope.records import schema

# Room set aside on the disk, so that a run that fills it can still be closed and say so.
_RESERVE = ".reserve"
_RESERVE_BYTES = 256 * 1024


@dataclass(frozen=True)
class RunFolder:
    """A run folder on disk, open for writing."""

    path: Path

    def read_info(self) -> dict[str, Any]:
        """Read `run.json` as it stands."""
        try:
            text = (self.path / schema.RUN).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise MachineError(f"{self.path / schema.RUN} is gone: who removed it?") from error
        info: dict[str, Any] = json.loads(text)
        return info

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Replace `run.json` in one move, giving up the reserve where the disk is full."""
        target = self.path / schema.RUN
        text = json.dumps(info, indent=2, allow_nan=False) + "\n"
        try:
            _replace_file(target, text)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise
            (self.path / _RESERVE).unlink(missing_ok=True)
            try:
                _replace_file(target, text)
            except OSError as again:
                raise disk_full(again, str(target)) from again

    def update_info(self, **changes: Any) -> dict[str, Any]:
        """Replace some fields of `run.json`; return all of it."""
        info = {**self.read_info(), **changes}
        self.write_info(info)
        return info

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the folder for this process alone; the kernel lets go of it when the process ends.

        Raises:
            RequestError: another process holds it, or it cannot be written.
        """
        if not os.access(self.path, os.W_OK):
            raise RequestError(
                f"cannot write into {self.path}. Copy it to where it can be written, or change "
                "its permissions."
            )
        held = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            process = self.read_info().get("process")
            raise RequestError(
                f"{self.path} is still running{f', as process {process}' if process else ''}. "
                "Wait for it, or stop it first."
            ) from None
        except OSError:
            pass  # a network file system without locks: nobody can be told apart from a dead run
        try:
            yield
        finally:
            os.close(held)

    def restore_missing_files(self) -> None:
        """Put back empty tables that are gone, where no checkpoint counts on their rows."""
        for name, columns in schema.COLUMNS.items():
            file = self.path / name
            if file.is_file() and file.stat().st_size > 0:
                continue
            if name != schema.TELEMETRY and (self.path / schema.CHECKPOINT).exists():
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
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                raise disk_full(error, schema.EVENTS) from error
            raise

    def close(self, **changes: Any) -> dict[str, Any]:
        """Write the last words into `run.json` and give back the reserve."""
        info = self.update_info(**changes)
        (self.path / _RESERVE).unlink(missing_ok=True)
        return info


def create(out: Path, name: str, kind: str, spec: Mapping[str, Any]) -> RunFolder:
    """Make `out/<time>-<name>/` with every file in it, and point `out/latest` to it."""
    made = _create(out, f"{time.strftime('%Y%m%d-%H%M%S')}-{slug(name)}", name, kind, spec)
    _point_latest(out, made.path.name)
    return made


def create_rank(run: Path, rank: int, kind: str, spec: Mapping[str, Any]) -> RunFolder:
    """Make `ranks/<rank>/` in a distributed run's folder: a run folder of its own."""
    return _create(run / schema.RANKS, str(rank), f"rank {rank}", kind, spec)


def _create(out: Path, wanted: str, name: str, kind: str, spec: Mapping[str, Any]) -> RunFolder:
    """Make a folder that appears in one move: a reader never meets one without its `run.json`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".new-", dir=out))
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            raise disk_full(error, str(out)) from error
        reason = getattr(error, "strerror", None) or error
        raise RequestError(
            f"cannot make a run folder in {str(out)!r}: {reason}. "
            "Choose a folder that can be written with --out DIR."
        ) from error
    try:
        building.chmod(0o755)
        for file, columns in schema.COLUMNS.items():
            (building / file).write_text(",".join(columns) + "\n", encoding="utf-8")
        (building / schema.EVENTS).touch()
        (building / _RESERVE).write_bytes(b"\0" * _RESERVE_BYTES)
        path = _move_into_place(building, out, wanted, name, kind, spec)
    except BaseException as error:
        shutil.rmtree(building, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        if error.errno in DISK_FULL_ERRNOS:
            raise disk_full(error, str(out)) from error
        raise RequestError(f"cannot make a run folder in {out}: {error}") from error
    return RunFolder(path)


def _move_into_place(
    building: Path, out: Path, wanted: str, name: str, kind: str, spec: Mapping[str, Any]
) -> Path:
    """Write `run.json` under the first free name and rename the folder to it."""
    number = 1
    while True:
        identity = wanted if number == 1 else f"{wanted}-{number}"
        info = {
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
        }
        RunFolder(building).write_info(info)
        try:
            building.rename(out / identity)
        except OSError:
            if not (out / identity).exists():
                raise
            number += 1  # another run of the same second and name
        else:
            return out / identity


def slug(name: str) -> str:
    """Turn any name into one that is safe as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:80] or "run"


def _replace_file(target: Path, text: str) -> None:
    """Write beside the target, sync, rename: a reader sees the old text or the new, never half."""
    replacement = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with replacement.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        replacement.replace(target)
    except OSError:
        replacement.unlink(missing_ok=True)
        raise


def _point_latest(out: Path, name: str) -> None:
    """Make `latest` a link to the newest run; a file system without links goes without."""
    latest = out / "latest"
    if latest.exists() and not latest.is_symlink():
        return  # it is not ours to replace
    link = out / f".latest-{uuid.uuid4().hex[:8]}"
    with contextlib.suppress(OSError):
        link.symlink_to(name)
    if link.is_symlink():
        try:
            link.replace(latest)
        except OSError:
            link.unlink(missing_ok=True)
