"""What is said of a run that holds nothing of what was to be exported."""

from __future__ import annotations

from stepscope.errors import AnswerIsNo
from stepscope.records import schema
from stepscope.records.reader import Run


def nothing_recorded(run: Run, wanted: str) -> AnswerIsNo:
    """Say that none of what is wanted is there yet, or that the run ended before it came to it."""
    if run.status == schema.RUNNING:
        next_move = f"Try again after its first {wanted}"
    else:
        next_move = f"`reason` in {schema.RUN} says how it ended"
    return AnswerIsNo(
        f"nothing to export: no {wanted} is recorded in {run.path} "
        f"(status {run.status}). {next_move}."
    )
