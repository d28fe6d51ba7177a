"""Read a run folder, complete or not, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import cast

from stepscope.files import parse_json
from stepscope.records import schema
from stepscope.records.run_folder import read_record
from stepscope.records.table import Table, read_table
from stepscope.records.throttled_steps import mark_throttled, throttled_times, watched_sources
from stepscope.records.types import EpochRow, RecordedSpec, RunEvent, RunRecord, Summary


@dataclass(frozen=True)
class Run:
    """A recorded run. Tables are read on first access."""

    path: Path
    info: RunRecord = field(repr=False)
    read: Callable[[Path], Table] = field(default=read_table, repr=False, compare=False)

    @property
    def status(self) -> str:
        """The status of the run: running, completed, interrupted, out_of_memory, failed."""
        return str(self.info.get("status"))

    @property
    def summary(self) -> Summary:
        """The summary; empty until the run is closed."""
        return self.info.get("summary") or {}

    def with_summary(self, summary: Summary) -> Run:
        """Return the run with another summary; tables that were read are not read again."""
        closed = replace(self, info={**self.info, "summary": summary})
        read = {name: value for name, value in vars(self).items() if name not in ("path", "info")}
        vars(closed).update(read)
        return closed

    @property
    def spec(self) -> RecordedSpec:
        """The settings as a plain mapping, whatever version wrote them."""
        return self.info.get("spec") or {}

    @cached_property
    def steps(self) -> Table:
        """Training steps, one per row; as a frame with the column `throttled`."""
        read = self.read(self.path / schema.STEPS)
        return replace(read, computed={schema.THROTTLED: lambda: self.throttled})

    @cached_property
    def epochs(self) -> Table:
        """Epochs, one row for each split."""
        return self.read(self.path / schema.EPOCHS)

    def epoch_rows(self, *splits: str) -> list[EpochRow]:
        """Return the rows of `epochs`, of these splits or of all."""
        rows = cast("Iterator[EpochRow]", self.epochs.rows())
        return [row for row in rows if not splits or row["split"] in splits]

    @cached_property
    def telemetry(self) -> Table:
        """Samples of memory, CPU, I/O and pressure."""
        return self.read(self.path / schema.TELEMETRY)

    @cached_property
    def energy(self) -> Table:
        """Readings of the energy sensors."""
        return self.read(self.path / schema.ENERGY)

    @cached_property
    def events(self) -> list[RunEvent]:
        """Events with their times; a line without a kind or a time is left out."""
        return list(_read_events(self.path / schema.EVENTS))

    @cached_property
    def throttled(self) -> list[bool | None]:
        """Whether each step was throttled; None if unknown."""
        if not watched_sources(self.events):
            return [None] * len(self.steps)
        times = throttled_times(self.events)
        return mark_throttled(self.steps["start_s"], self.steps["step_s"], times)


def load_run(path: str | Path, read: Callable[[Path], Table] = read_table) -> Run:
    """Open a run folder (or a link to one, such as `runs/latest`); `read` reads its tables."""
    return Run(*read_record(path, schema.RUN, "run"), read)


def rank_folders(run: Path, world_size: int | None = None) -> list[Path]:
    """List the folders of a run's ranks in their order, those below `world_size` if it is given."""
    found = (each for each in (run / schema.RANKS).glob("*") if each.name.isdecimal())
    ranks = {int(each.name): each for each in found if (each / schema.RUN).is_file()}
    return [ranks[rank] for rank in sorted(ranks) if world_size is None or rank < world_size]


def _read_events(path: Path) -> Iterator[RunEvent]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = parse_json(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            time_s = event.get("time_s")
            if isinstance(time_s, int | float) and math.isfinite(time_s):
                yield cast("RunEvent", event)
