"""On what was a run judged: the test set, or samples that it held out?"""

from __future__ import annotations

from typing import Any

from stepscope.records.reader import Run

JUDGED_ON = ("test", "validation")


def judged_on(run: Run) -> str:
    """Name the split that a run was evaluated on; `test` where there was no evaluation."""
    return next((split for split in run.epochs["split"] if split in JUDGED_ON), "test")


def evaluations(run: Run) -> dict[int, dict[str, Any]]:
    """Return the rows of a run's evaluations, by epoch."""
    split = judged_on(run)
    return {row["epoch"]: row for row in run.epochs.rows() if row["split"] == split}
