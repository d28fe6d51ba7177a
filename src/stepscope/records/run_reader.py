"""Read a run folder, complete or not, without torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast, get_args

from typing_extensions import get_type_hints

from stepscope.files import parse_json
from stepscope.records import schema
from stepscope.records.record_validation import validated
from stepscope.records.run_folder import read_record
from stepscope.records.table import Table, read_table
from stepscope.records.throttled_steps import mark_throttled, throttled_times, watched_sources
from stepscope.records.types import EpochRow, OtherEvent, RecordedSpec, RunEvent, RunRecord, Summary

EMPTY_RUN: dict[str, object] = {"spec": {}, "environment": {}, "instrument": {}, "summary": {}}


@dataclass(frozen=True)
class Run:
    """A recorded run. Tables are read on first access."""

    path: Path
    info: RunRecord = field(repr=False)
    read: Callable[[Path], Table] = field(default=read_table, repr=False, compare=False)
    left_out: Sequence[str] = field(default=(), repr=False, compare=False)

    @property
    def status(self) -> str:
        """The status of the run: running, completed, interrupted, out_of_memory, failed."""
        return self.info["status"]

    @property
    def summary(self) -> Summary:
        """The summary; empty until the run is closed."""
        return self.info["summary"]

    def with_summary(self, summary: Summary) -> Run:
        """Return the run with another summary; tables that were read are not read again."""
        closed = replace(self, info={**self.info, "summary": summary})
        read = {name: value for name, value in vars(self).items() if name not in ("path", "info")}
        vars(closed).update(read)
        return closed

    @property
    def spec(self) -> RecordedSpec:
        """The settings as a plain mapping, whatever version wrote them."""
        return self.info["spec"]

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
        unknown = dict.fromkeys(schema.EPOCH_COLUMNS)  # where the file lacks a column
        rows = (cast("EpochRow", {**unknown, **row}) for row in self.epochs.rows())
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
        """Events with their times; a line that is not an event of its kind is left out."""
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
    folder, info, left_out = read_record(path, schema.RUN, RunRecord, EMPTY_RUN)
    return Run(folder, info, read, left_out)


def rank_folders(run: Path, world_size: int | None = None) -> list[Path]:
    """List the folders of a run's ranks in their order, those below `world_size` if it is given."""
    found = (each for each in (run / schema.RANKS).glob("*") if each.name.isdecimal())
    ranks = {int(each.name): each for each in found if (each / schema.RUN).is_file()}
    return [ranks[rank] for rank in sorted(ranks) if world_size is None or rank < world_size]


def _read_events(path: Path) -> Iterator[RunEvent]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # a line cut by a kill among them
            event = validated(OtherEvent, parse_json(line))[0]
            yield validated(events_by_name().get(event["event"], OtherEvent), event)[0]


@cache
def events_by_name() -> dict[str, Any]:
    """Return the type of each kind of event by its name."""
    kinds = (kind for group in get_args(RunEvent) for kind in (get_args(group) or (group,)))
    return {get_args(get_type_hints(kind)["event"])[0]: kind for kind in kinds}
