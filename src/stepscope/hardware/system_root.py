"""Where the files begin in which Linux tells of itself: `/`, or a tree that stands in for it.

Every reader of `/proc`, `/sys` and `/etc` that asks about the machine takes a `root`, so that it
can be tried on the tree of a machine that is not at hand. Only whoever starts such a reader asks
here which root that is.
"""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.errors import RequestError

VARIABLE = "STEPSCOPE_SYSTEM_ROOT"


def system_root() -> Path:
    """Return the root of the pseudo files: `/`, unless STEPSCOPE_SYSTEM_ROOT names a tree.

    Raises:
        RequestError: the variable names no folder.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return Path("/")
    if not Path(named).is_dir():
        raise RequestError(
            f"{VARIABLE}: wanted a folder with proc/ and sys/ below it, found {named!r}, which is "
            "none. Correct it or unset it."
        )
    return Path(named).absolute()
