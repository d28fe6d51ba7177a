"""Temporary replacement of attributes of classes and modules: how hooks are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Patches:
    """Attributes that are replaced temporarily."""

    def __init__(self) -> None:
        self._replaced: list[_Replaced] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute of a class or module by `make(original)`."""
        original = getattr(owner, name)
        own = name in vars(owner)
        stored = vars(owner).get(name)
        ours = make(original)
        setattr(owner, name, ours)
        self._replaced.append(_Replaced(owner, name, ours, stored, own))

    def restore_one(self, owner: Any, name: str) -> None:
        """Restore one attribute before the others, unless other code has replaced it since."""
        for replaced in self._replaced:
            if replaced[:2] == (owner, name) and vars(owner).get(name) is replaced.ours:
                self._replaced.remove(replaced)
                replaced.restore()
                return

    def undo(self) -> None:
        """Restore all attributes in reverse order."""
        while self._replaced:
            self._replaced.pop().restore()


class _Replaced(NamedTuple):
    """A replaced attribute: the replacement, and the owner's entry, if it had one."""

    owner: Any
    name: str
    ours: Any
    stored: Any
    was_its_own: bool

    def restore(self) -> None:
        if self.was_its_own:
            setattr(self.owner, self.name, self.stored)
        else:
            delattr(self.owner, self.name)
