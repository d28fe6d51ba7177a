"""The folder of a trial: beside the runs while it goes on, and gone after it."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from pathlib import Path

import psutil

from stepscope.errors import RequestError
from stepscope.records.record_folder import slug


def temporary_folder(out: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a folder beside the runs: what is for all may lie in memory, and would take of it.

    Folders that a killed process has left there are removed.

    Raises:
        RequestError: it cannot be made.
    """
    beside = next(each for each in (out, *out.absolute().parents) if each.is_dir())
    _remove_leftovers(beside)
    try:
        return tempfile.TemporaryDirectory(prefix=f"{_prefix()}{os.getpid()}-", dir=beside)
    except OSError as error:
        raise RequestError(
            f"cannot make a folder for a trial in {str(beside)!r}: {error.strerror}. "
            "Choose a folder that can be written with --out DIR."
        ) from error


def _prefix() -> str:
    """Name the machine: on a disk that several share, the processes of others look dead here."""
    return f".trial-{slug(platform.node())}-"


def _remove_leftovers(beside: Path) -> None:
    for folder in beside.glob(f"{_prefix()}*"):
        maker = folder.name.removeprefix(_prefix()).partition("-")[0]
        if maker.isdecimal() and not psutil.pid_exists(int(maker)):
            shutil.rmtree(folder, ignore_errors=True)  # it may be another person's
