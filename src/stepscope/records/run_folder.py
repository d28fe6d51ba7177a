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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from typing_extensions import Self

from stepscope.errors import DISK_FULL_ERRNOS, MachineError, RequestError, disk_full
from stepscope.files import parse_json, replace_file, sync_and_move
from stepscope.records import schema
from stepscope.records.csv_log import write_all
from stepscope.records.record_validation import UnfitError, clean, validated
from stepscope.records.types import RecordedSpec, RunRecord

# --- Record folders


_UNFINISHED = ".new-"  # how the name of a folder begins until it is complete
# Reserved disk space, so that a record can be closed on a full disk.
_RESERVE = ".reserve"
_RESERVE_BYTES = 256 * 1024


Record = TypeVar("Record", bound=Mapping[str, object])  # the TypedDict of its JSON file


class RecordFolder(Generic[Record]):
    """A record's folder on disk, open for writing."""

    INFO: ClassVar[str]
    FILES: ClassVar[Mapping[str, str]] = {}  # besides, with their first content

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self._path = path
        self._descriptor = descriptor  # by which it is followed, if it is open already

    @property
    def path(self) -> Path:
        """Where the folder is: it may be renamed while it is `followed`."""
        if self._descriptor is not None:
            self._path = _current_path(self._path, self._descriptor)
        return self._path

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Find the folder also after it was renamed, which takes /proc."""
        self._descriptor = os.open(self._path, os.O_RDONLY)
        try:
            yield
        finally:
            descriptor, self._path, self._descriptor = self._descriptor, self.path, None
            os.close(descriptor)

    def check_is_there(self) -> None:
        """Raise MachineError if the folder was removed."""
        if not (self.path / self.INFO).exists():
            raise self._gone()

    @classmethod
    def make_latest(cls, out: Path, name: str, info: Mapping[str, Any]) -> Self:
        """Create `out/<time>-<name>/` atomically, and point `out/latest` to it."""
        made = cls.make(out, f"{time.strftime('%Y%m%d-%H%M%S')}-{slug(name)}", info)
        _point_latest(out, made.path.name)
        return made

    @classmethod
    def make(cls, out: Path, wanted: str, info: Mapping[str, Any]) -> Self:
        """Create a folder atomically, with its record and its files in it.

        All is written into a temporary folder, which is then renamed to the first free name.
        """
        building = None
        begun = {"status": schema.RUNNING, "reason": None, "started_unix_s": time.time()}
        try:
            if "\0" in str(out):
                raise OSError(errno.EINVAL, "a path cannot have a NUL")
            out.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=out))
            building.chmod(0o755)
            for name, content in {**cls.FILES, _RESERVE: "\0" * _RESERVE_BYTES}.items():
                (building / name).write_text(content, encoding="utf-8")
            for number in itertools.count(1):
                identity = wanted if number == 1 else f"{wanted}-{number}"
                record = {"schema": schema.SCHEMA, "id": identity, **begun, **info}
                cls(building).write_info(cast("Record", record))
                try:
                    return cls(building.rename(out / identity))
                except OSError:
                    if not (out / identity).exists():  # else another of the same second and name
                        raise
            raise AssertionError("some name is free")
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                raise disk_full(error, str(out)) from error
            what = cls.INFO.removesuffix(".json")
            raise RequestError(
                f"cannot make a {what} folder in {str(out)!r}: {error.strerror or error}. "
                "Choose a folder that can be written with --out DIR."
            ) from error
        finally:
            if building is not None:  # gone if it was renamed
                shutil.rmtree(building, ignore_errors=True)

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
        content = [(json.dumps(info, indent=2, allow_nan=False) + "\n").encode()]
        try:
            replace_file(target, content, sync_and_move, make_folder=False)
        except FileNotFoundError as error:
            raise self._gone() from error
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise
            (self.path / _RESERVE).unlink(missing_ok=True)
            try:
                replace_file(target, content, sync_and_move, make_folder=False)
            except OSError as again:
                raise disk_full(again, str(target)) from again

    def _gone(self) -> MachineError:
        return MachineError(
            f"{self.path / self.INFO} was removed while stepscope was writing to its folder. "
            "What it held is lost: start the run again."
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
            with self.followed():
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


def _current_path(path: Path, descriptor: int) -> Path:
    """Return where an open folder is now; the path as it was if that is unknown."""
    try:
        opened = os.fstat(descriptor)
        if not (path.exists() and os.path.samestat(path.stat(), opened)):
            renamed = Path(f"/proc/self/fd/{descriptor}").readlink()
            if renamed.exists() and os.path.samestat(renamed.stat(), opened):
                return renamed
    except OSError:  # no /proc, or other code has closed the descriptor
        pass
    return path


def remove_unfinished(out: Path) -> None:
    """Remove folders that a killed process had not finished making; nobody may be making one."""
    for folder in out.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(folder, ignore_errors=True)


def slug(name: str) -> str:
    """Return a name that is safe as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:80] or "run"


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
    FILES: ClassVar = {
        **{name: ",".join(columns) + "\n" for name, columns in schema.COLUMNS.items()},
        schema.EVENTS: "",
    }

    def restore_missing_files(self) -> None:
        """Create missing tables: an earlier checkpoint, or none, is one that has its rows."""
        for name in schema.COLUMNS:
            file = self.path / name
            if not file.is_file() or file.stat().st_size == 0:
                file.write_text(self.FILES[name], encoding="utf-8")

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
    return RunFolder.make_latest(out, name, _new_run(name, kind, spec))


def create_at(
    path: Path, name: str, kind: str, spec: RecordedSpec, choice: RecordedSpec | None = None
) -> RunFolder:
    """Create a run folder at an exact path, a trial's in a sweep, without changing `latest`."""
    if path.exists():
        raise RequestError(f"{path} exists already. Choose another folder for the new run.")
    chosen = {} if choice is None else {"choice": choice}
    return RunFolder.make(path.parent, path.name, {**_new_run(name, kind, spec), **chosen})


def create_rank(run: Path, rank: int, kind: str, spec: RecordedSpec) -> RunFolder:
    """Create `ranks/<rank>/` in a distributed run's folder, which is a run folder too."""
    return RunFolder.make(run / schema.RANKS, str(rank), _new_run(f"rank {rank}", kind, spec))


def _new_run(name: str, kind: str, spec: RecordedSpec) -> dict[str, Any]:
    known = {"name": name, "kind": kind, "process": None, "spec": spec}
    return {**known, "environment": {}, "instrument": {}, "summary": {}}


# --- Reading


def read_record(
    path: str | Path, name: str, kind: type[Record], defaults: Mapping[str, object]
) -> tuple[Path, Record, list[str]]:
    """Read the record in a folder, or named by its file; `defaults` are for what it lacks.

    Return the folder, the record as its type has it, and what was left out since it did not fit.
    """
    what = name.removesuffix(".json")
    folder = Path(path)
    if folder.name == name:
        folder = folder.parent
    try:
        info = parse_json((folder / name).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise RequestError(
            f"{folder} is not a {what} folder: there is no {name} in it. "
            f"Give the folder that a {what} printed at its end, such as runs/latest."
        ) from None
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {folder / name}: {clean(str(error))}") from error
    if not isinstance(info, dict) or not isinstance(info.get("schema"), int):
        raise RequestError(f"{folder / name} is not the record of a {what}: it has no `schema`.")
    if info["schema"] > schema.SCHEMA:
        raise RequestError(
            f"{folder} was written by a newer stepscope (schema {info['schema']}, this one reads "
            f"up to {schema.SCHEMA}). Update stepscope to read it."
        )
    folder = folder.resolve()
    usual = {"id": folder.name, "name": folder.name, "kind": what, "status": schema.UNKNOWN}
    known = {key: value for key, value in info.items() if value is not None}
    try:
        record, left_out = validated(kind, {**usual, **defaults, **known})
    except UnfitError as error:
        raise RequestError(
            f"{folder / name} is damaged: {error}. Restore it from a copy, or run it again."
        ) from None
    return folder, record, [f"{name}: left out {each}" for each in left_out]
