"""Temporary replacement of attributes of classes and modules: how hooks are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_INHERITED = object()


class Patches:
    """Attributes that are replaced temporarily."""

    def __init__(self) -> None:
        # The owner, the name, the replacement, and the owner's own entry.
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute of a class or module by `make(original)`."""
        stored = vars(owner).get(name, _INHERITED)
        ours = make(getattr(owner, name))
        setattr(owner, name, ours)
        self._replaced.append((owner, name, ours, stored))

    def restore_one(self, owner: Any, name: str) -> None:
        """Restore one attribute before the others, unless other code has replaced it since."""
        for replaced in self._replaced:
            if replaced[:2] == (owner, name) and vars(owner).get(name) is replaced[2]:
                self._replaced.remove(replaced)
                _restore(*replaced)
                return

    def undo(self) -> None:
        """Restore all attributes in reverse order."""
        while self._replaced:
            _restore(*self._replaced.pop())


def _restore(owner: Any, name: str, ours: Any, stored: Any) -> None:
    if stored is _INHERITED:
        delattr(owner, name)
    else:
        setattr(owner, name, stored)
