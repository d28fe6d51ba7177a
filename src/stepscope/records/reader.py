"""Read a run folder, whole, half written or cut short, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from stepscope.records import schema
from stepscope.records.record_file import read_record


@dataclass(frozen=True)
class Table:
    """Columns by name; `None` is unknown. A column that the file lacks is unknown throughout."""

    columns: dict[str, list[Any]]
    cut_lines: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> list[Any]:
        found = self.columns.get(name)
        return [None] * len(self) if found is None else found

    def rows(self) -> Iterator[dict[str, Any]]:
        """Go through the rows as mappings from column to value."""
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, values, strict=True))


@dataclass(frozen=True)
class Run:
    """A run as it was recorded. Tables are read when they are first asked for."""

    path: Path
    info: dict[str, Any] = field(repr=False)

    @property
    def status(self) -> str:
        """Say how the run stands: running, completed, interrupted, out_of_memory, failed."""
        return str(self.info.get("status"))

    @property
    def summary(self) -> dict[str, Any]:
        """Return the closing figures; empty while the run goes on."""
        return dict(self.info.get("summary") or {})

    @property
    def spec(self) -> dict[str, Any]:
        """Return the settings as a plain mapping, whatever version wrote them."""
        return dict(self.info.get("spec") or {})

    @cached_property
    def steps(self) -> Table:
        """Training steps, one a row."""
        return read_table(self.path / schema.STEPS)

    @cached_property
    def epochs(self) -> Table:
        """Epochs, one row for each split."""
        return read_table(self.path / schema.EPOCHS)

    @cached_property
    def telemetry(self) -> Table:
        """Samples of memory, CPU, I/O and pressure."""
        return read_table(self.path / schema.TELEMETRY)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """What happened and when; a line cut short by a kill is left out."""
        return list(_read_events(self.path / schema.EVENTS))


def load_run(path: str | Path) -> Run:
    """Open a run folder (or a link to one, such as `runs/latest`)."""
    return Run(*read_record(path, schema.RUN, "run"))


def read_table(path: Path) -> Table:
    """Read a CSV file by its header; lines of the wrong length are counted and left out.

    A column that was added to the schema after the file was written is there, all unknown.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return Table({})
    # What follows the last line end is left out: a kill may have cut a number in two. No field is
    # ever quoted, so a stray quotation mark is no more than a bad value in its own line.
    lines = [line.split(",") for line in text.split("\n")[:-1]]
    header, rows = (lines[0], lines[1:]) if lines else ([], [])
    converters = [_converter(name) for name in header]
    whole, cut = [], 0
    for row in rows:
        try:
            whole.append([to(text) for to, text in zip(converters, row, strict=True)])
        except ValueError:
            cut += 1
    columns = [list(column) for column in zip(*whole, strict=True)] or [[] for _ in header]
    later = {
        name: [None] * len(whole)
        for name in schema.COLUMNS.get(path.name, ())
        if name not in header
    }
    return Table(dict(zip(header, columns, strict=True)) | later, cut_lines=cut)


def _converter(column: str) -> Any:
    if column in schema.WORDS:
        return lambda text: text or None
    if column in schema.WHOLE_NUMBERS:
        return lambda text: int(text) if text else None
    return lambda text: float(text) if text else None


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
