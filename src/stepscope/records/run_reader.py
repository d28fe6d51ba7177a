"""Read a run folder, complete or not, without torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stepscope.records import schema
from stepscope.records.run_folder import read_record
from stepscope.records.table import Table, read_table
from stepscope.records.throttled_steps import times_held_back, touched, what_was_watched


@dataclass(frozen=True)
class Run:
    """A recorded run. Tables are read on first access."""

    path: Path
    info: dict[str, Any] = field(repr=False)
    read: Callable[[Path], Table] = field(default=read_table, repr=False, compare=False)

    @property
    def status(self) -> str:
        """The status of the run: running, completed, interrupted, out_of_memory, failed."""
        return str(self.info.get("status"))

    @property
    def summary(self) -> dict[str, Any]:
        """The summary; empty until the run is closed."""
        return dict(self.info.get("summary") or {})

    @property
    def spec(self) -> dict[str, Any]:
        """The settings as a plain mapping, whatever version wrote them."""
        return dict(self.info.get("spec") or {})

    @cached_property
    def steps(self) -> Table:
        """Training steps, one per row; as a frame with the column `throttled`."""
        read = self.read(self.path / schema.STEPS)
        return replace(read, computed={schema.THROTTLED: lambda: self.throttled})

    @cached_property
    def epochs(self) -> Table:
        """Epochs, one row for each split."""
        return self.read(self.path / schema.EPOCHS)

    @cached_property
    def telemetry(self) -> Table:
        """Samples of memory, CPU, I/O and pressure."""
        return self.read(self.path / schema.TELEMETRY)

    @cached_property
    def energy(self) -> Table:
        """Readings of the energy sensors."""
        return self.read(self.path / schema.ENERGY)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Events with their times; an incomplete line is left out."""
        return list(_read_events(self.path / schema.EVENTS))

    @cached_property
    def throttled(self) -> list[bool | None]:
        """Whether each step was throttled; None if unknown."""
        if not what_was_watched(self.events):
            return [None] * len(self.steps)
        held = times_held_back(self.events)
        return touched(self.steps["start_s"], self.steps["step_s"], held)


def load_run(path: str | Path, read: Callable[[Path], Table] = read_table) -> Run:
    """Open a run folder (or a link to one, such as `runs/latest`); `read` reads its tables."""
    return Run(*read_record(path, schema.RUN, "run"), read)


def _read_events(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
