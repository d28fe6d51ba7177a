"""A recorded run in a person's own program: one that a notebook shows.

`records` knows nothing of looks. Here the two are introduced: the run as it reads, and its cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.records import run_reader


@dataclass(frozen=True)
class NotebookRun(run_reader.Run):
    """A run as it was recorded; as the last line of a notebook's cell it shows itself."""

    def _repr_html_(self) -> str:
        """Give headline and charts to a notebook, which asks by this name."""
        from stepscope.report.html.notebook_cell import to_cell

        return to_cell(self)


def load_run(path: str | Path) -> NotebookRun:
    """Open a run folder (or a link to one, such as `runs/latest`)."""
    read = run_reader.load_run(path)
    return NotebookRun(read.path, read.info)
