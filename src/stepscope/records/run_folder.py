"""The run folder: created and closed atomically, readable at any time between."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from stepscope.errors import DISK_FULL_ERRNOS, DataError, MachineError, RequestError, disk_full
from stepscope.records import schema
from stepscope.records.csv_log import write_all
from stepscope.records.types import RecordedSpec, RunRecord

# --- Record folders


_UNFINISHED = ".new-"  # how the name of a folder begins until it is complete
# Reserved disk space, so that a record can be closed on a full disk.
_RESERVE = ".reserve"
_RESERVE_BYTES = 256 * 1024


Record = TypeVar("Record", bound=Mapping[str, object])  # the TypedDict of its JSON file
Fill = Callable[[Path, str], None]  # write the files of a new record, given its folder and its name


@dataclass(frozen=True)
class RecordFolder(Generic[Record]):
    """A record's folder on disk, open for writing."""

    INFO: ClassVar[str]

    path: Path

    def read_info(self) -> Record:
        """Return the content of the record's JSON file."""
        try:
            text = (self.path / self.INFO).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise self._gone() from error
        return cast("Record", json.loads(text))

    def write_info(self, info: Record) -> None:
        """Replace the JSON file atomically, releasing the reserve if the disk is full."""
        target = self.path / self.INFO
        text = json.dumps(info, indent=2, allow_nan=False) + "\n"
        try:
            _replace_file(target, text)
        except FileNotFoundError as error:
            raise self._gone() from error
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise
            (self.path / _RESERVE).unlink(missing_ok=True)
            try:
                _replace_file(target, text)
            except OSError as again:
                raise disk_full(again, str(target)) from again

    def _gone(self) -> MachineError:
        return MachineError(
            f"{self.path / self.INFO} was removed while stepscope was writing to its folder. "
            "Start the run again."
        )

    def update_info(self, **changes: Any) -> Record:
        """Replace some of its fields; return all of them."""
        info = cast("Record", {**self.read_info(), **changes})
        self.write_info(info)
        return info

    def close(self, **changes: Any) -> Record:
        """Write the last fields and release the reserve."""
        info = self.update_info(**changes)
        (self.path / _RESERVE).unlink(missing_ok=True)
        return info

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for this process; the kernel releases it when the process ends."""
        if not os.access(self.path, os.W_OK):
            raise RequestError(
                f"cannot write into {self.path}. Copy it to where it can be written, or change "
                "its permissions."
            )
        with self._lock() as is_held:
            # Without locks, on some network file systems, a live run looks like a dead one.
            if is_held:
                process = self.read_info().get("process")
                raise RequestError(
                    f"{self.path} is still running{f', as process {process}' if process else ''}. "
                    "Wait for it, or stop it first."
                )
            yield

    def is_held(self) -> bool | None:
        """Return whether a process holds the lock; None if the file system has no locks."""
        with self._lock() as is_held:
            return is_held

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool | None]:
        """Try to lock the folder; yield whether another process holds it, None if unknown."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held: bool | None = False
        except BlockingIOError:
            is_held = True
        except OSError:
            is_held = None
        try:
            yield is_held
        finally:
            os.close(folder)


def remove_unfinished(out: Path) -> None:
    """Remove folders that a killed process had not finished making; nobody may be making one."""
    for folder in out.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(folder, ignore_errors=True)


def make_latest_folder(out: Path, name: str, fill: Fill, what: str = "run") -> Path:
    """Create `out/<time>-<name>/` atomically, and point `out/latest` to it."""
    made = make_folder(out, f"{time.strftime('%Y%m%d-%H%M%S')}-{slug(name)}", fill, what)
    _point_latest(out, made.name)
    return made


def make_folder(out: Path, wanted: str, fill: Fill, what: str = "run") -> Path:
    """Create a folder atomically, with its record in it.

    `fill` writes the files into a temporary folder, which is then renamed to the first free name;
    `fill` receives that name.
    """
    building = None
    try:
        if "\0" in str(out):
            raise OSError(errno.EINVAL, "a path cannot have a NUL")
        out.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=out))
        building.chmod(0o755)
        (building / _RESERVE).write_bytes(b"\0" * _RESERVE_BYTES)
        for number in itertools.count(1):
            identity = wanted if number == 1 else f"{wanted}-{number}"
            fill(building, identity)
            try:
                return building.rename(out / identity)
            except OSError:
                if not (out / identity).exists():  # else another of the same second and name
                    raise
        raise AssertionError("some name is free")
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise disk_full(error, str(out)) from error
        raise RequestError(
            f"cannot make a {what} folder in {str(out)!r}: {error.strerror or error}. "
            "Choose a folder that can be written with --out DIR."
        ) from error
    finally:
        if building is not None:  # gone if it was renamed
            shutil.rmtree(building, ignore_errors=True)


def slug(name: str) -> str:
    """Return a name that is safe as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:80] or "run"


def _replace_file(target: Path, text: str) -> None:
    """Replace a file atomically: write, sync, rename."""
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
    """Make `latest` a link to the newest run, if the file system has links."""
    latest = out / "latest"
    if latest.exists() and not latest.is_symlink():
        return  # not a link: leave it
    link = out / f".latest-{uuid.uuid4().hex[:8]}"
    with contextlib.suppress(OSError):
        link.symlink_to(name)
    if link.is_symlink():
        try:
            link.replace(latest)
        except OSError:
            link.unlink(missing_ok=True)


class RunFolder(RecordFolder[RunRecord]):
    """A run folder on disk, open for writing."""

    INFO = schema.RUN

    def restore_missing_files(self) -> None:
        """Create missing tables, unless a checkpoint depends on their rows."""
        for name, columns in schema.COLUMNS.items():
            file = self.path / name
            if file.is_file() and file.stat().st_size > 0:
                continue
            sampled = name in (schema.TELEMETRY, schema.ENERGY)
            if not sampled and (self.path / schema.CHECKPOINT).exists():
                raise DataError(
                    f"{file} is missing or empty, but the checkpoint depends on its rows. "
                    f"Restore it, or remove {schema.CHECKPOINT} to start the run again."
                )
            file.write_text(",".join(columns) + "\n", encoding="utf-8")

    def add_event(self, kind: str, time_s: float, **detail: Any) -> None:
        """Append one line to `events.jsonl`, synced to disk."""
        line = json.dumps({"time_s": round(time_s, 6), "event": kind, **detail}) + "\n"
        try:
            file = os.open(self.path / schema.EVENTS, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = os.fstat(file).st_size
                cut = size and os.pread(file, 1, size - 1) != b"\n"
                write_all(file, ("\n" * cut + line).encode(), schema.EVENTS)
            finally:
                os.close(file)
        except FileNotFoundError as error:
            raise self._gone() from error


def create(out: Path, name: str, kind: str, spec: RecordedSpec) -> RunFolder:
    """Create `out/<time>-<name>/` with all its files, and point `out/latest` to it."""
    return RunFolder(make_latest_folder(out, name, _filler(name, kind, spec)))


def create_at(
    path: Path, name: str, kind: str, spec: RecordedSpec, choice: RecordedSpec | None = None
) -> RunFolder:
    """Create a run folder at an exact path, a trial's in a sweep, without changing `latest`."""
    if path.exists():
        raise RequestError(f"{path} exists already. Choose another folder for the new run.")
    return RunFolder(make_folder(path.parent, path.name, _filler(name, kind, spec, choice)))


def create_rank(run: Path, rank: int, kind: str, spec: RecordedSpec) -> RunFolder:
    """Create `ranks/<rank>/` in a distributed run's folder, which is a run folder too."""
    fill = _filler(f"rank {rank}", kind, spec)
    return RunFolder(make_folder(run / schema.RANKS, str(rank), fill))


def _filler(name: str, kind: str, spec: RecordedSpec, choice: RecordedSpec | None = None) -> Fill:
    def fill(building: Path, identity: str) -> None:
        for file, columns in schema.COLUMNS.items():
            (building / file).write_text(",".join(columns) + "\n", encoding="utf-8")
        (building / schema.EVENTS).touch()
        info: RunRecord = {
            "schema": schema.SCHEMA,
            "id": identity,
            "name": name,
            "kind": kind,
            "status": schema.RUNNING,
            "reason": None,
            "started_unix_s": time.time(),
            "process": None,
            "spec": spec,
            "environment": {},
            "instrument": {},
            "summary": {},
        }
        if choice is not None:
            info["choice"] = choice
        RunFolder(building).write_info(info)

    return fill


# --- Reading


def read_record(path: str | Path, name: str, what: str) -> tuple[Path, Any]:
    """Read the record in a folder, or named by its file; return folder and content."""
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
