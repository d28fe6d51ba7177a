"""A disk that forgets at a power cut what was not synced, for the files of one process."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock, current_thread, main_thread
from unittest import mock

_fsync, _replace = os.fsync, os.replace


@dataclass(frozen=True)
class Moment:
    """What was safe after one change of the disk, and what was only in memory then."""

    contents: dict[int, bytes]  # of the files, by inode: as last synced
    names: dict[str, int]  # of the folder: as last synced
    renamed: tuple[dict[str, int], ...]  # the names after each later rename, which may be lost
    in_memory: dict[int, bytes]


@dataclass
class ForgetfulDisk:
    """Record what is synced in one folder, and by which thread."""

    folder: Path
    moments: list[Moment] = field(default_factory=list)
    synced_by_trainer: list[str] = field(default_factory=list)
    _contents: dict[int, bytes] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _renamed: tuple[dict[str, int], ...] = ()
    _held: list[int] = field(default_factory=list)  # an inode that is open is not used again
    _lock: RLock = field(default_factory=RLock)

    def __post_init__(self) -> None:
        record = self.folder / "run.json"  # synced before the folder got its name
        self._contents[record.stat().st_ino] = record.read_bytes()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record every sync and every rename of this process."""
        with mock.patch("os.fsync", self._sync), mock.patch("os.replace", self._rename):
            try:
                yield
            finally:
                for file in self._held:
                    os.close(file)

    def _sync(self, file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        _fsync(file)
        with self._lock:
            if current_thread() is main_thread():
                self.synced_by_trainer.append("" if path.suffix == ".part" else path.name)
            if path == self.folder:
                self._names, self._renamed = self._names_now(), ()
            elif path.parent == self.folder:
                if (inode := os.fstat(file).st_ino) not in self._contents:
                    self._held.append(os.dup(file))
                self._contents[inode] = path.read_bytes()
            self._take()

    def _rename(self, source: str, target: str) -> None:
        with self._lock:
            _replace(source, target)
            if Path(target).parent == self.folder:
                self._renamed += (self._names_now(),)
                self._take()

    def _names_now(self) -> dict[str, int]:
        return {entry.name: entry.inode() for entry in os.scandir(self.folder)}

    def _take(self) -> None:
        # Checkpoints are not appended to: none survives in part under its name.
        now = [Path(each) for each in os.scandir(self.folder) if not each.name.endswith(".pt")]
        in_memory = {file.stat().st_ino: file.read_bytes() for file in now}
        self.moments.append(Moment(dict(self._contents), self._names, self._renamed, in_memory))

    def after_a_cut(self, at: int, chance: random.Random, target: Path) -> Path:
        """Write what is left of the folder when the power is cut after so many changes."""
        moment = self.moments[at]
        names = chance.choice((moment.names, *moment.renamed))
        target.mkdir(parents=True)
        for name, inode in names.items():
            safe, later = moment.contents.get(inode, b""), moment.in_memory.get(inode, b"")
            if later.startswith(safe):  # of rows that were appended, any part may have survived
                safe = later[: chance.randint(len(safe), len(later))]
            (target / name).write_bytes(safe)
        return target
