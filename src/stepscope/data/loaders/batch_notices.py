"""Notices about a batch that travel with it from a worker to the training process."""

from __future__ import annotations

from typing import Any, NamedTuple


class Notice(NamedTuple):
    """An event to report once: its kind, the path of the sample, and the reason."""

    event: str
    path: str
    reason: str


class Noticed(NamedTuple):
    """A batch with notices."""

    batch: Any
    notices: tuple[Notice, ...]
