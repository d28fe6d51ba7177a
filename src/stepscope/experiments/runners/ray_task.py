"""What runs on a node: the check of settings, and a trial with its record as bytes."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from stepscope.errors import MachineError, StepscopeError
from stepscope.experiments.trial import temporary_folder
from stepscope.experiments.workload import TrialRequest, Workload
from stepscope.records import schema
from stepscope.records.types import SettingValue
from stepscope.supervisor.child_supervisor import Outcome, SilentListener

MOST_BYTES = 256 * 1024**2
_LEFT_BEHIND = (schema.CHECKPOINT,)


@dataclass(frozen=True)
class Parcel:
    """The packed files of a folder, and the names of those that were left out."""

    data: bytes
    left_behind: tuple[str, ...] = ()


def pack(folder: Path, most_bytes: int = MOST_BYTES) -> Parcel:
    """Pack a folder's files without checkpoints, the smallest first, up to a total size."""
    files = sorted(
        (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()),
        key=lambda file: (file.stat().st_size, file),
    )
    packed, left_behind, total_bytes = io.BytesIO(), [], 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in files:
            name, size = str(file.relative_to(folder)), file.stat().st_size
            if file.name in _LEFT_BEHIND or total_bytes + size > most_bytes:
                left_behind.append(name)
                continue
            archive.write(file, name)
            total_bytes += size
    return Parcel(packed.getvalue(), tuple(sorted(left_behind)))


def unpack(parcel: Parcel, folder: Path) -> None:
    """Unpack a folder in one move, so that a kill leaves none that looks complete."""
    building = folder.with_name(f".{folder.name}.part")
    for leftover in (building, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    building.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(parcel.data)) as archive:
        archive.extractall(building)
    building.rename(folder)


_SET_BY_RAY = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Refusal:
    """An error of a node as plain values: not every exception can be pickled."""

    message: str
    exit_code: int


def check(
    workload: Workload, settings: Sequence[Mapping[str, SettingValue]], directory: str
) -> Refusal | None:
    """Return why settings could only fail on this node, or None."""
    _enter(directory)
    try:
        for values in settings:
            workload.check(values)
    except StepscopeError as error:
        return Refusal(str(error), error.exit_code)
    return None


def make(
    workload: Workload,
    values: Mapping[str, SettingValue],
    name: str,
    directory: str,
    time_limit_s: float | None,
) -> tuple[Outcome, Parcel | None] | Refusal:
    """Make a trial in a temporary folder; return its outcome and its record, if it could start.

    `name` is its folder's, `directory` where the sweep was started. Refuse if the disk is full.
    """
    _enter(directory)
    # Torch chooses the threads, unless the user set them for the node: Ray limits them later.
    if _SET_BY_RAY not in psutil.Process().environ():
        os.environ.pop(_SET_BY_RAY, None)
    try:
        with temporary_folder(Path(tempfile.gettempdir())) as folder:
            path = Path(folder) / name
            outcome = workload.run(values, TrialRequest(path, SilentListener(), time_limit_s))
            return outcome, pack(path) if path.is_dir() else None
    except StepscopeError as error:
        return Refusal(str(error), error.exit_code)
    except OSError as error:
        return Refusal(f"cannot write the record of a trial: {error}", MachineError.exit_code)


def _enter(directory: str) -> None:
    """Work in the directory of the sweep, if this node has it."""
    if Path(directory).is_dir():
        os.chdir(directory)
