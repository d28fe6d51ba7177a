"""The index of records: those below one folder, their known files, and nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import RequestError
from stepscope.records import schema
from stepscope.records.run_folder import read_record
from stepscope.records.run_reader import EMPTY_RUN
from stepscope.records.sweep_folder import EMPTY_SWEEP
from stepscope.records.types import RunRecord, SweepRecord

Stamp = tuple[tuple[str, int, int], ...]

_RECORDS: dict[str, tuple[Any, Mapping[str, object]]] = {
    schema.RUN: (RunRecord, EMPTY_RUN),
    schema.SWEEP: (SweepRecord, EMPTY_SWEEP),
}
_TABLES = (schema.STEPS, schema.EPOCHS, schema.TELEMETRY, schema.EVENTS)
_DEEPEST = 3  # levels of folders


class NotThereError(LookupError):
    """No readable record has that name."""


@dataclass(frozen=True)
class RunEntry:
    """A record in the list: the content of its JSON file, or why it cannot be read."""

    name: str
    info: RunRecord | SweepRecord | str
    changed_unix_s: float


class Library:
    """The records below a folder, named by their relative paths."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._known: dict[Path, tuple[Stamp, RunRecord | SweepRecord | str]] = {}

    def find(self, name: str) -> Path:
        """Return the folder of a record.

        Raises:
            NotThereError: it does not exist, or lies outside, by `..` or a link.
        """
        parts = name.split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise NotThereError(name)
        folder = self._inside(self.root.joinpath(*parts))
        if folder is None or not any((folder / file).exists() for file in _RECORDS):
            raise NotThereError(name)
        self.files_of(folder)
        return folder

    def files_of(self, folder: Path) -> dict[Path, os.stat_result]:
        """Return the files that the view of a record reads, of a sweep also its trials'.

        Raises:
            NotThereError: one of them is a link that leads outside, or not a regular file.
        """
        folders = [folder, *self._trials_in(folder)]
        files = [each / name for each in folders for name in (*_RECORDS, *_TABLES)]
        return {file: found for file in files if (found := self._status_of(file)) is not None}

    def stamp(self, folder: Path) -> Stamp:
        """Return a fingerprint of a record's files, which changes when they do."""
        return _stamp_of(self.files_of(folder))

    def entries(self) -> list[RunEntry]:
        """Return all records, the newest first."""
        found = [self._entry(folder) for folder in self._folders(self.root, _DEEPEST)]
        return sorted(found, key=_started_unix_s, reverse=True)

    def _inside(self, path: Path) -> Path | None:
        """Resolve the links of a path; None if they lead outside, in a circle or nowhere."""
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            return None
        return real if real.is_relative_to(self.root) else None

    def _status_of(self, file: Path) -> os.stat_result | None:
        """Return the status of a file in a permitted folder; None if it does not exist."""
        try:
            found = file.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(found.st_mode):
            real = self._inside(file)
            if real is None:
                raise NotThereError(str(file))
            found = real.lstat()
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would block
            raise NotThereError(str(file))
        return found

    def _trials_in(self, folder: Path) -> list[Path]:
        trials = folder / schema.TRIALS
        if not (folder / schema.SWEEP).exists() or not os.path.lexists(trials):
            return []
        within = self._inside(trials)
        if within is None or not within.is_dir():
            raise NotThereError(str(trials))
        found = sorted(within.iterdir())
        for trial in found:
            if trial.is_symlink() and self._inside(trial) is None:
                raise NotThereError(str(trial))
        return found

    def _folders(self, folder: Path, deeper: int) -> Iterator[Path]:
        try:
            names = sorted(
                each.name
                for each in os.scandir(folder)
                if each.is_dir(follow_symlinks=False) and not each.name.startswith(".")
            )
        except OSError:  # no permission, or removed meanwhile
            return
        for name in names:
            path = folder / name
            if any(os.path.lexists(path / file) for file in (*_RECORDS, *_TABLES)):
                yield path
            elif deeper:
                yield from self._folders(path, deeper - 1)

    def _entry(self, folder: Path) -> RunEntry:
        name = folder.relative_to(self.root).as_posix()
        try:
            files = self.files_of(folder)
            own = {file: found for file, found in files.items() if file.parent == folder}
            stamp = _stamp_of(own)
        except (NotThereError, OSError) as error:
            why = f"not shown: {error} does not exist or is a link that leads out of the folder"
            return RunEntry(name, why, 0.0)
        # A run in progress changes its tables; its JSON file is read again only when it changes.
        record = tuple(each for each in stamp if Path(each[0]).name in _RECORDS)
        known = self._known.get(folder)
        if known is None or known[0] != record:
            file = schema.SWEEP if (folder / schema.SWEEP).exists() else schema.RUN
            info: RunRecord | SweepRecord | str
            try:
                info = read_record(folder, file, *_RECORDS[file])[1]
            except RequestError as error:
                info = str(error)
            known = self._known[folder] = (record, info)
        changed_ns = max(at_ns for _, at_ns, _ in stamp)
        return RunEntry(name, known[1], changed_ns / 1e9)


def _stamp_of(files: Mapping[Path, os.stat_result]) -> Stamp:
    return tuple((str(file), found.st_mtime_ns, found.st_size) for file, found in files.items())


def _started_unix_s(entry: RunEntry) -> float:
    started = None if isinstance(entry.info, str) else entry.info["started_unix_s"]
    return entry.changed_unix_s if started is None else started
