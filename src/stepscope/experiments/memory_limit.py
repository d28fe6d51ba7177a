"""The memory limit of a run, and who holds it: the kernel, or we by looking."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from stepscope.errors import MachineError
from stepscope.hardware import control_group
from stepscope.hardware.control_group import ControlGroup

CONTROL_GROUP = "control group"
WATCHDOG = "watchdog"


@dataclass(frozen=True)
class MemoryLimit:
    """How much a training and all that it starts may take; `reason` says why there is no group."""

    limit_bytes: int
    group: ControlGroup | None = None
    reason: str | None = None

    @property
    def held_by(self) -> str:
        """Name who holds it."""
        return WATCHDOG if self.group is None else CONTROL_GROUP


@contextlib.contextmanager
def holding(limit_bytes: int | None, *, watchdog: bool = False) -> Iterator[MemoryLimit | None]:
    """Have a limit for as long as a training goes on; `watchdog` makes no control group."""
    limit = None if limit_bytes is None else _find_holder(limit_bytes, watchdog)
    try:
        yield limit
    finally:
        if limit is not None and limit.group is not None:
            limit.group.remove()


def _find_holder(limit_bytes: int, watchdog: bool) -> MemoryLimit:
    if watchdog:
        return MemoryLimit(limit_bytes, reason="the watchdog was asked for")
    try:
        return MemoryLimit(limit_bytes, control_group.make(limit_bytes))
    except MachineError as error:
        return MemoryLimit(limit_bytes, reason=str(error))
