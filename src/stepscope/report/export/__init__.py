"""Runs in the formats of other tools, one file for each format."""

from __future__ import annotations

from stepscope.errors import AnswerIsNo
from stepscope.records import schema
from stepscope.records.run_reader import Run


def nothing_recorded(run: Run, wanted: str) -> AnswerIsNo:
    """Return the error for a run without the wanted data."""
    next_step = f"Try again after its first {wanted}"
    if run.status != schema.RUNNING:
        next_step = f"See `reason` in {schema.RUN}"
    return AnswerIsNo(
        f"nothing to export: no {wanted} is recorded in {run.path} "
        f"(status {run.status}). {next_step}."
    )
