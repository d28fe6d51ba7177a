"""Where stepscope keeps files of its user: what can be made again, and what cannot.

    cache_folder   $XDG_CACHE_HOME/stepscope, by default in ~/.cache (macOS: ~/Library/Caches)
    state_folder   $XDG_STATE_HOME/stepscope, by default in ~/.local/state

The variables are those of the XDG Base Directory Specification. They are read here alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
