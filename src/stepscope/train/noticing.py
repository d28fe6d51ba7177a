"""A loader that tells what was noticed while its batches were made, and hands on the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from stepscope.data.enduring import EnduringLoader
from stepscope.data.notices import Notice, Noticed


class NoticingLoader:
    """Take the notices off the batches of a loader, and tell each of them once."""

    def __init__(self, loader: EnduringLoader, tell: Callable[[Notice], None]) -> None:
        self._loader, self._tell = loader, tell
        self._told: set[Notice] = set()

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch. Workers start now, not at the first batch."""
        return map(self._hand_on, iter(self._loader))  # keeps no batch while the loop computes

    def close(self) -> None:
        """End the workers."""
        self._loader.close()

    def _hand_on(self, loaded: Any) -> Any:
        made, timing = loaded
        if not isinstance(made, Noticed):
            return loaded
        for notice in made.notices:
            if notice not in self._told:
                self._told.add(notice)
                self._tell(notice)
        return made.batch, timing
