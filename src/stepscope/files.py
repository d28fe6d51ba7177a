"""Files that a person wrote: settings, the design of an accelerator."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Far more than anybody writes. What has no end, `/dev/zero`, would take all memory.
_MOST_BYTES = 16 * 2**20


def read_written(file: Path) -> str:
    """Read a text file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no text, or larger than anything that a person writes.
    """
    with file.open("rb") as opened:
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES // 2**20} MiB")
    return content.decode("utf-8")


# --- Where stepscope keeps files of its user: what can be made again, and what cannot


CACHE_VARIABLE = "XDG_CACHE_HOME"
STATE_VARIABLE = "XDG_STATE_HOME"


def cache_folder() -> Path | None:
    """Return the folder for what can be made again; None for a user without a home."""
    return _folder(CACHE_VARIABLE, "Library/Caches" if sys.platform == "darwin" else ".cache")


def state_folder() -> Path | None:
    """Return the folder for what must outlive a process; None for a user without a home."""
    return _folder(STATE_VARIABLE, ".local/state")


def is_chosen(variable: str) -> bool:
    """Say whether the user has named a folder by this variable."""
    return bool(os.environ.get(variable))


def _folder(variable: str, in_home: str) -> Path | None:
    try:
        parent = os.environ.get(variable) or Path.home() / in_home
    except RuntimeError:  # a user without a home, as in some containers
        return None
    return Path(parent) / "stepscope"
