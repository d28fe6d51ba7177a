"""`stepscope.load_run`: a recorded run that Jupyter can display; `stepscope.what_if` on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.records import run_reader

if TYPE_CHECKING:
    from stepscope.analyze.what_if import WhatIfPrediction


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


def what_if(run: run_reader.Run, question: str) -> WhatIfPrediction:
    """Predict what a change such as `workers=4` would bring to a run."""
    from stepscope.analyze import what_if as predictions

    return predictions.what_if(run, question)
