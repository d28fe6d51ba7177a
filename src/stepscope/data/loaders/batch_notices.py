"""What was seen while a batch was made, and travels with it to the process that trains."""

from __future__ import annotations

from typing import Any, NamedTuple


class Notice(NamedTuple):
    """Something to be told of once: the kind of event, and what it was about."""

    event: str
    path: str
    reason: str


class Noticed(NamedTuple):
    """A batch, and what was noticed in the making."""

    batch: Any
    notices: tuple[Notice, ...]
