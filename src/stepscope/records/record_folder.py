"""A folder that holds one record: made whole in one move, readable at every moment after.

What a record is about stands in one JSON file, which is only ever replaced as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from stepscope.errors import DISK_FULL_ERRNOS, MachineError, RequestError, disk_full

# Room set aside on the disk, so that what fills it can still be closed and say so.
_RESERVE = ".reserve"
_RESERVE_BYTES = 256 * 1024


@dataclass(frozen=True)
class RecordFolder:
    """A record's folder on disk, open for writing."""

    INFO: ClassVar[str]

    path: Path

    def read_info(self) -> dict[str, Any]:
        """Read the record's JSON file as it stands."""
        try:
            text = (self.path / self.INFO).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise self._gone() from error
        info: dict[str, Any] = json.loads(text)
        return info

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Replace it in one move, giving up the reserve where the disk is full."""
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
        return MachineError(f"{self.path / self.INFO} is gone: who removed it?")

    def update_info(self, **changes: Any) -> dict[str, Any]:
        """Replace some of its fields; return all of them."""
        info = {**self.read_info(), **changes}
        self.write_info(info)
        return info

    def close(self, **changes: Any) -> dict[str, Any]:
        """Write the last words and give back the reserve."""
        info = self.update_info(**changes)
        (self.path / _RESERVE).unlink(missing_ok=True)
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

    def is_held(self) -> bool | None:
        """Say whether a process holds the folder; None where its file system has no locks."""
        asked = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(asked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        finally:
            os.close(asked)
        return False


def make_folder(
    out: Path, wanted: str, fill: Callable[[Path, str], None], what: str = "run"
) -> Path:
    """Make a folder that appears in one move: a reader never meets one without its record.

    `fill` writes the files into a folder that is given another name, the first free one, at the
    end; that name is told beforehand.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".new-", dir=out))
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            raise disk_full(error, str(out)) from error
        reason = getattr(error, "strerror", None) or error
        raise RequestError(
            f"cannot make a {what} folder in {str(out)!r}: {reason}. "
            "Choose a folder that can be written with --out DIR."
        ) from error
    try:
        building.chmod(0o755)
        (building / _RESERVE).write_bytes(b"\0" * _RESERVE_BYTES)
        return _move_into_place(building, out, wanted, fill)
    except BaseException as error:
        shutil.rmtree(building, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        if error.errno in DISK_FULL_ERRNOS:
            raise disk_full(error, str(out)) from error
        raise RequestError(f"cannot make a {what} folder in {out}: {error}") from error


def _move_into_place(
    building: Path, out: Path, wanted: str, fill: Callable[[Path, str], None]
) -> Path:
    number = 1
    while True:
        identity = wanted if number == 1 else f"{wanted}-{number}"
        fill(building, identity)
        try:
            building.rename(out / identity)
        except OSError:
            if not (out / identity).exists():
                raise
            number += 1  # another one of the same second and name
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


def point_latest(out: Path, name: str) -> None:
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
