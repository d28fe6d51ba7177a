"""`stepscope.load_run`: a recorded run that Jupyter can display."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.records import run_reader


@dataclass(frozen=True)
class NotebookRun(run_reader.Run):
    """A recorded run that displays itself as the last line of a notebook cell."""

    def _repr_html_(self) -> str:
        """Return verdict and charts as HTML, for Jupyter."""
        from stepscope.report.html.notebook_cell import to_cell

        return to_cell(self)


def load_run(path: str | Path) -> NotebookRun:
    """Open a run folder (or a link to one, such as `runs/latest`)."""
    read = run_reader.load_run(path)
    return NotebookRun(read.path, read.info)
